"""The `cadenza` command. Heavy imports stay inside the commands, so that --help is instant."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter, ValidationError

from cadenza.cli.configuration import ConfigFile, ModelName, configuration, with_model
from cadenza.cli.errors import UsageError
from cadenza.cli.models import models
from cadenza.cli.options import ChatOptions, ServeOptions, ServerOptions
from cadenza.cli.output import OutputError, complain
from cadenza.cli.policies import policies
from cadenza.cli.simulation_options import SimulateOptions

_NO_READER = 128 + 13
Shell = Literal["bash", "zsh", "fish"]

app = App(
    name="cadenza",
    help="Stream tokens from a language model; every scheduling decision is a hook.",
    help_on_error=False,
)
app.command(policies)
app.command(models)
app.command(configuration)


@app.command
def serve(
    model: ModelName = None,
    /,
    *,
    config: ConfigFile = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    options: ServeOptions | None = None,
) -> int:
    """Serve a model over OpenAI-compatible HTTP and gRPC.

    Parameters
    ----------
    dry_run
        Check options, model, policies and ports, and start nothing.
    """
    given = with_model(options, model)
    if dry_run:
        from cadenza.cli.config import resolve
        from cadenza.cli.serve import check

        return check(resolve(given, config))

    from cadenza.service import engine_process

    # Before anything else, as it imports for seconds, in which this process imports what it needs
    process = engine_process.start_engine()
    try:
        from cadenza.cli.config import resolve
        from cadenza.cli.serve import run

        return run(resolve(given, config), process)
    finally:
        process.end()


@app.command
def chat(
    question: str | None = None,
    /,
    *,
    server: Annotated[str, Parameter(group="Server")] = ServerOptions.server,
    options: ChatOptions | None = None,
) -> int:
    """Talk to a running service.

    Without a question, what stands on standard input is one; a terminal is asked again and again.
    There Ctrl-C stops an answer, and Ctrl-D ends the talk.

    Parameters
    ----------
    question
        What to ask, once.
    server
        HTTP address of the running service.
    """
    from cadenza.cli.chat import run

    return run(ServerOptions(server=server), question, options or ChatOptions())


@app.command
def simulate(trace: str, /, *, options: SimulateOptions | None = None) -> int:
    """Try policies on a trace of requests, with the service's scheduler on a virtual clock.

    Parameters
    ----------
    trace
        A trace of any known format, a file of `cadenza serve --record`, or synthetic:NAME=VALUE,...
    """
    from cadenza.cli.simulate import run

    return run(trace, options or SimulateOptions())


@app.command
def calibrate(steps: Path, /, *, output: Path = Path("machine.json"), name: str = "mine") -> int:
    """Learn from an engine's step log how long its steps take, for `cadenza simulate --machine`.

    Parameters
    ----------
    steps
        The file FILE.steps that `cadenza serve --record FILE` has written.
    output
        The file to write.
    name
        What reports shall call the machine.
    """
    from cadenza.cli.calibrate import run

    return run(steps, output, name)


@app.command
def completion(shell: Shell, /) -> int:
    """Write a script that lets a shell complete subcommands and flags.

    It belongs into ~/.local/share/bash-completion/completions/cadenza; for zsh into a file
    _cadenza in a folder of $fpath, and for fish into ~/.config/fish/completions/cadenza.fish.

    Parameters
    ----------
    shell
        Whose script.
    """
    from cadenza.cli.completion import write_completion

    return write_completion(app, shell)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status: 0, 1 for a failure, 2 for a wrong use.

    141, as from a program that SIGPIPE ends, where nobody reads what it writes any more (`| head`).
    """
    try:
        sys.exit(app(argv, exit_on_error=False, print_error=False) or 0)
    except (CycloptsError, UsageError) as error:
        complain(_told(error))
        sys.exit(2)
    except OutputError as error:
        if not error.has_reader:
            sys.exit(_NO_READER)
        complain(error)
        sys.exit(1)


def _told(error: Exception) -> str:
    """What is wrong; of an option's value, in the words that are used for files and variables."""
    if isinstance(error, ValidationError):
        import pydantic

        from cadenza.cli.config import told

        if isinstance(error.__cause__, pydantic.ValidationError):
            return told(error.__cause__)
    return str(error)


if __name__ == "__main__":
    main()
