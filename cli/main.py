"""The `cadenza` command. Heavy imports stay inside the commands, so that --help is instant."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from cadenza.cli.errors import UsageError
from cadenza.cli.options import PolicyOptions, ServeOptions
from cadenza.cli.output import OutputError
from cadenza.cli.policies import policies

_NO_READER = 128 + 13

app = App(
    name="cadenza",
    help="Stream tokens from a language model; every scheduling decision is a hook.",
    help_on_error=False,
)
app.command(policies)


@app.command
def serve(
    model: Annotated[
        str, Parameter(help="a GGUF file, a model folder, a hub id, or demo")
    ] = "demo",
    /,
    *,
    options: ServeOptions | None = None,
    policies: PolicyOptions | None = None,
) -> int:
    """Serve a model over OpenAI-compatible HTTP and gRPC."""
    from cadenza.cli.serve import run

    return run(model, options or ServeOptions(), policies or PolicyOptions())


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status: 0, 1 for a failure, 2 for a wrong use.

    141, as from a program that SIGPIPE ends, where nobody reads what it writes any more (`| head`).
    """
    try:
        sys.exit(app(argv, exit_on_error=False, print_error=False) or 0)
    except (CycloptsError, UsageError) as error:
        sys.stderr.write(f"cadenza: {error}\n")
        sys.exit(2)
    except OutputError as error:
        if not error.has_reader:
            sys.exit(_NO_READER)
        sys.stderr.write(f"cadenza: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
