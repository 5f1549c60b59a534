"""Policies that misbehave when the seed says so, and the guard that ends what takes too long."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from cadenza.policies import hookimpl
from cadenza.policies.arrivals import ArrivalColumns, ServiceView
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.discovery import BUILT_IN, Catalog, Found
from cadenza.policies.hook_guard import Interrupted
from cadenza.policies.library import Library
from cadenza.policies.standing import STRIKES, WINDOW_S
from cadenza.policies.views import RequestColumns, StepView

from .loop import SeededLoop

if TYPE_CHECKING:
    from .engine import Engine

T = TypeVar("T")

ENGINE_POLICY, FRONT_POLICY = "mischievous", "mischievous-at-the-door"
KINDS = ("raises", "answers nonsense", "overruns", "hangs")


class _Ended(BaseException):
    """Raised in a call that takes too long."""


class Mischief:
    """What the policies of one life do.

    Of one engine that hangs in a hook the policy is to blame, unless somebody else ends it there:
    that is forgiven once.
    """

    present: Mischief | None = None  # policies are built by name, and find it here

    def __init__(self, loop: SeededLoop, kind: str, engine: Callable[[], Engine]) -> None:
        self.kind = kind
        self.hung: list[Engine] = []
        self._faults_s: dict[object, list[float]] = {}  # when, by the process that asked
        self._loop = loop
        self._chance = random.Random(loop.chance.random())
        self._engine = engine

    def act(self, policy: str, num_rows: int, *, is_asked: bool = True) -> Any:
        """An answer to a hook, or what a policy does instead."""
        is_engine = policy == ENGINE_POLICY
        if is_engine and self._engine().is_hanging:
            return None  # what is left of the turn does not happen
        if is_engine and self._is_to_blame:
            self._loop.errors.append("a policy is asked again in which an engine has hung")
        if self._chance.random() < 0.6:
            return None
        kind = self.kind
        if kind == "answers nonsense" and not is_asked:
            return "x"  # nobody looks at it
        if kind == "hangs":
            if is_engine:
                self.hung.append(self._engine())
                self._engine().hang_in_hook()
            return None
        self._note_fault(self._engine() if is_engine else None)
        if kind == "raises":
            raise self._chance.choice([RuntimeError, SystemExit, KeyboardInterrupt])("no")
        if kind == "overruns":
            self._loop.jump(0.1)
            raise _Ended
        return self._chance.choice([np.full(max(num_rows, 1), np.nan), np.zeros(num_rows + 2), "x"])

    @property
    def _is_to_blame(self) -> bool:
        return len(self.hung) > 1 or any(not engine.was_ended_by_others for engine in self.hung)

    def _note_fault(self, process: object) -> None:
        now_s = self._loop.now_s
        recent = [
            then_s for then_s in self._faults_s.get(process, ()) if now_s - then_s <= WINDOW_S
        ]
        if len(recent) >= STRIKES:
            self._loop.errors.append("a policy is asked that should be in quarantine")
        self._faults_s[process] = [*recent, now_s]


class Guard:
    """Stands for `SignalGuard`, whose timer would go by the system's clock."""

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __init__(self, loop: SeededLoop) -> None:
        self._loop = loop
        self._taken_s = 0.0

    def run(self, limit_s: float, call: Callable[..., T], *arguments: Any) -> T:
        began_s = self._loop.now_s
        answer = call(*arguments)
        self._taken_s = self._loop.now_s - began_s
        if self._taken_s > limit_s:
            raise Interrupted
        return answer

    def taken_s(self) -> float:
        return self._taken_s

    def own_s(self, elapsed_s: float) -> float:
        return elapsed_s


def _act(policy: str, num_rows: int, *, is_asked: bool = True) -> Any:
    mischief = Mischief.present
    return None if mischief is None else mischief.act(policy, num_rows, is_asked=is_asked)


class Mischievous:
    """Orders admissions, so it claims, and chooses victims."""

    name = ENGINE_POLICY

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> Any:
        return _act(self.name, len(waiting))

    @hookimpl
    def select_victims(self, running: RequestColumns, step: StepView) -> Any:
        return _act(self.name, len(running))

    @hookimpl
    def on_generated(self, generated: RequestColumns, step: StepView) -> Any:
        return _act(self.name, len(generated), is_asked=False)


class MischievousAtTheDoor:
    """Sees who comes in."""

    name = FRONT_POLICY

    @hookimpl
    def gate_arrivals(self, arrivals: ArrivalColumns, service: ServiceView) -> Any:
        return _act(self.name, len(arrivals))


CHOSEN = {
    "order_admissions": (ENGINE_POLICY,),
    "select_victims": (ENGINE_POLICY,),
    "gate_arrivals": (FRONT_POLICY,),
}
LIBRARY = Library(
    catalog=Catalog(
        policies={name: Found(cls=cls, source=BUILT_IN) for name, cls in BUILTIN.items()}
        | {cls.name: Found(cls=cls, source="test") for cls in (Mischievous, MischievousAtTheDoor)}
    )
)
