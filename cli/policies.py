"""`cadenza policies`: its commands and their flags. What they do is imported inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from cadenza.cli.options import PolicyOptions

policies = App(name="policies", help="List, explain and check scheduling policies.")


@policies.command(name="list")
def list_policies(
    *,
    json: Annotated[bool, Parameter(negative=())] = False,
    flags: PolicyOptions | None = None,
) -> int:
    """List all policies, and which would decide under the same flags of `cadenza serve`.

    Parameters
    ----------
    json
        Write JSON, for programs.
    """
    from cadenza.cli.policy_reports import report_all

    return report_all(flags or PolicyOptions(), as_json=json)


@policies.command
def show(name: str, /, *, plugins_dir: Path | None = None) -> int:
    """Explain one policy: what it does, its options with their defaults, its hooks.

    Parameters
    ----------
    name
        The policy's name.
    plugins_dir
        A folder whose Python files hold policies.
    """
    from cadenza.cli.policy_reports import explain

    return explain(name, plugins_dir)


@policies.command
def check(target: str, /) -> int:
    """Import and register a plugin, and say what is wrong with it; status 1 if anything is.

    Parameters
    ----------
    target
        A Python file, a folder of them, or an installed distribution, entry point or module.
    """
    from cadenza.cli.policy_reports import check_plugin

    return check_plugin(target)
