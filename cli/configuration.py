"""`cadenza config`: its commands and their flags. What they do is imported inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from cadenza.cli.errors import UsageError
from cadenza.cli.options import ServeOptions

configuration = App(name="config", help="Show what `cadenza serve` goes by.")

ModelName = Annotated[
    str | None, Parameter(help="A GGUF file, a model folder, a hub id, or demo, the default.")
]
ConfigFile = Annotated[
    Path | None,
    Parameter(
        help="A YAML file of options, by the names of flags; flags and CADENZA_* win over it. "
        "Default: the file that CADENZA_CONFIG names."
    ),
]


@configuration.command
def show(
    model: ModelName = None,
    /,
    *,
    config: ConfigFile = None,
    json: Annotated[bool, Parameter(negative=())] = False,
    options: ServeOptions | None = None,
) -> int:
    """Show every option that `cadenza serve` would go by with the same flags, and where from.

    Parameters
    ----------
    json
        Write JSON, for programs.
    """
    from cadenza.cli.config import resolve
    from cadenza.cli.config_reports import show_all

    return show_all(resolve(with_model(options, model), config), as_json=json)


@configuration.command
def schema() -> int:
    """Write the JSON Schema of the YAML file."""
    from cadenza.cli.config_reports import show_schema

    return show_schema()


def with_model(flags: ServeOptions | None, model: str | None) -> ServeOptions:
    """The flags, with the model that stands without one.

    Raises:
        UsageError: `--model` names one as well.
    """
    flags = flags or ServeOptions()
    if model is None:
        return flags
    if "model" in flags.model_fields_set:
        raise UsageError("the model is given twice, with --model and without")
    return flags.model_copy(update={"model": model})
