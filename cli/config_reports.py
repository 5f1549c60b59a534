"""What `cadenza config` and `cadenza serve --dry-run` write."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from cadenza.cli.config import DEFAULT, Resolved, schema
from cadenza.cli.output import complain, write, write_table


def show_all(resolved: Resolved, *, as_json: bool) -> int:
    """Write every option, its value and its source."""
    warn(resolved.warnings)
    shown = resolved.shown()
    if as_json:
        told = {
            name: {"value": value, "from": resolved.sources[name]} for name, value in shown.items()
        }
        write(f"{json.dumps(told, indent=2)}\n")
    else:
        _table((name, shown[name], resolved.sources[name]) for name in shown)
    return 0


def show_schema() -> int:
    """Write the JSON Schema of the YAML file."""
    write(f"{json.dumps(schema(), indent=2)}\n")
    return 0


def show_given(resolved: Resolved) -> None:
    """Write the options that are not the defaults."""
    shown, sources = resolved.shown(), resolved.sources
    given = [(name, shown[name], sources[name]) for name in shown if sources[name] != DEFAULT]
    if given:
        _table(given)
    else:
        write("every option is at its default\n")


def warn(warnings: Iterable[str]) -> None:
    """Tell what looks wrong and is no fault."""
    for warning in warnings:
        complain(warning)


def _table(rows: Iterable[tuple[str, Any, str]]) -> None:
    cells = [(name, _cell(value), source) for name, value, source in rows]
    write_table([("OPTION", "VALUE", "FROM"), *cells])


def _cell(value: Any) -> str:
    match value:
        case None | []:
            return "-"
        case bool():
            return "true" if value else "false"
        case list():
            return " ".join(map(str, value))
    return str(value)
