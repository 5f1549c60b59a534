"""What `cadenza policies hooks` writes: the contract, for those who have only the package."""

from __future__ import annotations

import inspect

from cadenza.cli.errors import UsageError
from cadenza.cli.output import write, write_table
from cadenza.policies import hookspecs
from cadenza.policies.choices import DECISIONS, SHORT
from cadenza.policies.contract import ARGUMENTS, FRONT_HOOKS
from cadenza.policies.errors import unknown


def list_hooks() -> int:
    """Write a table of all hooks."""
    rows = [
        (hook, SHORT.get(hook, "-"), "front" if hook in FRONT_HOOKS else "engine", _about(hook)[0])
        for hook in ARGUMENTS
    ]
    write_table([("HOOK", "DECISION", "PROCESS", "WHAT FOR"), *rows])
    return 0


def explain_hook(name: str) -> int:
    """Write the contract of one hook.

    Raises:
        UsageError: there is none of that name.
    """
    hook = DECISIONS.get(name, name)
    if hook not in ARGUMENTS:
        names = [*ARGUMENTS, *(short for short in DECISIONS if DECISIONS[short] in ARGUMENTS)]
        raise UsageError(unknown("hook", name, dict.fromkeys(names), "hooks and decisions"))
    lines = [f"@hookimpl\ndef {hook}{_signature(hook)}", "", *_about(hook)]
    if hook in SHORT:
        lines += ["", f"--policy {SHORT[hook]}=NAME chooses a policy for it."]
    views = f"{hookspecs.__package__}.views and .arrivals"
    lines += ["", f"What its arguments hold is written in {views}."]
    write("\n".join(lines) + "\n")
    return 0


def _signature(hook: str) -> str:
    """As in the module, where all annotations are text."""
    signature = str(inspect.signature(getattr(hookspecs, hook)))
    return signature.replace("'", "").replace("(", "(self, ", 1)


def _about(hook: str) -> list[str]:
    return (inspect.getdoc(getattr(hookspecs, hook)) or "").splitlines()
