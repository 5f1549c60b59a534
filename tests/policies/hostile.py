"""A module of hostile policies, generated from the specifications of the hooks.

There is one policy a hook, `hostile-HOOK`. All of them have no opinion until a file beside the
module says which hooks shall do what.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from cadenza.policies.contract import ARGUMENTS, OBSERVERS

HEAD = """
import signal
import time
from pathlib import Path

import numpy as np

from cadenza.policies import hookimpl

ARMED = Path(__file__).with_suffix(".armed")


def loops(view):
    while True:
        pass


def sleeps(view):
    time.sleep(60)


def catches(view):
    while True:
        try:
            while True:
                time.sleep(0.001)
        except BaseException:
            pass


def raises(view):
    raise RuntimeError("no")


def answers_nan(view):
    return np.full(max(len(view), 1), np.nan)


def answers_too_long(view):
    return np.zeros(len(view) + 2)


def writes(view):
    column = next(name for name in ("arrival", "choices", "block") if hasattr(view, name))
    getattr(view, column)[:] = 0


def blocks_the_signal(view):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])


def act(hook, view):
    try:
        kind, *hooks = ARMED.read_text().split()
    except (FileNotFoundError, ValueError):  # it is being written
        return None
    return globals()[kind](view) if hook in hooks else None
"""

POLICY = """

class Hostile_{hook}:
    name = "hostile-{hook}"

    @hookimpl
    def {hook}(self, {arguments}):
        return act("{hook}", {view})
"""

TAIL = """

@hookimpl
def register_policies():
    return [{classes}]
"""

ENDLESS = ("loops", "sleeps", "catches")
WRONG = ("answers_nan", "answers_too_long")  # observers are not asked for anything
KINDS = (*ENDLESS, "raises", "writes", "blocks_the_signal", *WRONG)


def policy_of(hook: str) -> str:
    """The name of the policy for one hook."""
    return f"hostile-{hook}"


def kinds_of(hook: str) -> tuple[str, ...]:
    """What a policy can do wrong in a hook."""
    return tuple(kind for kind in KINDS if hook not in OBSERVERS or kind not in WRONG)


class HostileModule:
    """The module in a folder for plugins, and what its policies do now."""

    def __init__(self, folder: Path) -> None:
        """Write it. Nobody is armed."""
        self.path = folder / "hostile.py"
        self._armed = folder / "hostile.armed"
        policies = [_policy(hook, arguments) for hook, arguments in ARGUMENTS.items()]
        classes = ", ".join(f"Hostile_{hook}" for hook in ARGUMENTS)
        self.path.write_text(HEAD + "".join(policies) + TAIL.format(classes=classes))

    def arm(self, kind: str, hooks: Collection[str]) -> None:
        """From now on these hooks do that."""
        beside = self._armed.with_suffix(".new")
        beside.write_text(" ".join((kind, *hooks)))
        beside.rename(self._armed)

    def disarm(self) -> None:
        """Nobody has an opinion again."""
        self._armed.unlink(missing_ok=True)


def _policy(hook: str, arguments: tuple[str, ...]) -> str:
    *_, view = [name for name in arguments if name not in ("step", "service", "costs")]
    return POLICY.format(hook=hook, arguments=", ".join(arguments), view=view)
