"""An engine process without a process: the real loop, scheduler and policies; no model.

A token is a hash of all tokens before it and of the choice's number.
"""

from __future__ import annotations

import asyncio
import random
from enum import Enum, auto
from typing import Any

from cadenza.engine.loop import EngineLoop
from cadenza.engine.policies import EnginePolicies
from cadenza.policies.blame import SIZE, Blame, Culprit, read_blame
from cadenza.policies.hook_guard import HookGuard
from cadenza.policies.library import Library
from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.plan import StepOutcome, StepPlan
from cadenza.scheduler.scheduler import Scheduler
from cadenza.testing.fake_runner import FakeRunner
from cadenza.wire.messages import (
    EngineConfig,
    Failed,
    Progress,
    Ready,
    Resubmit,
    Start,
    Submit,
    ToEngine,
    ToFront,
)

from .loop import SeededLoop
from .wire import Wire

LIMITS: dict[str, Any] = {
    "num_blocks": 20,
    "block_size": 4,
    "max_model_len": 48,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 20,
    "num_host_blocks": 6,
}
EOS = 7
POISON = 249  # the engine dies of a prompt with this token
_KILLED = -9
_STEP_S = 0.02
_LONG_PASS_S = 20.0
_CHECKED = 0.25  # of the steps


class Loading(Enum):
    """How the start of an engine goes."""

    WELL = auto()
    FAILS = auto()  # it says so
    DIES = auto()


class _Idle(BaseException):
    """The loop has nothing to do for so many seconds; None: until a message comes."""

    def __init__(self, wait_s: float | None) -> None:
        self.wait_s = wait_s


class _Poisoned(BaseException):
    """The pass that takes the process with it."""


class Engine:
    """A process as the supervisor knows it, the loop's channel, and what may happen to both."""

    backlog = 0
    is_compiling = False

    def __init__(
        self,
        loop: SeededLoop,
        library: Library,
        guard: HookGuard,
        vocab_size: int,
        loading: Loading = Loading.WELL,
        *,
        has_long_passes: bool = False,
    ) -> None:
        self.is_alive = True
        self.is_stopped = False  # by somebody who may let it go on
        self.was_ended_by_others = False
        self.culprit: Culprit | None = None
        self.num_poisoned = 0
        self.connection = Wire(loop, self._receive, self.die)
        self.scheduler: Scheduler | None = None
        self._loop = loop
        self._chance = random.Random(loop.chance.random())
        self._library, self._guard, self._vocab_size = library, guard, vocab_size
        self._loading = loading
        self.has_long_passes = has_long_passes
        self._blame = bytearray(SIZE)
        self._arrived: list[ToEngine] = []
        self._has_waited = False
        self.is_hanging = False
        self._turn_is_due = False
        self._is_mute = False  # until the turn is over: what it says then is never sent
        self._exited: asyncio.Future[int] = loop.create_future()
        self._engine: EngineLoop | None = None
        self._step_s = _STEP_S
        self._said: list[ToFront] = []
        self.connection.send(Progress("libraries"))

    # service.engine_process.EngineProcess

    @property
    def exit_status(self) -> int | None:
        return None if self.is_alive else _KILLED

    @property
    def hook_under_way(self) -> str | None:
        return None if self.culprit is None else self.culprit.hook

    async def wait(self) -> int:
        return await asyncio.shield(self._exited)

    async def kill(self, grace_s: float = 0.0) -> int:
        if grace_s:
            await asyncio.wait((self._exited,), timeout=grace_s)
        self.die()
        return await self.wait()

    stop = kill

    def end(self) -> None:
        self.die()

    # what happens to it

    def die(self, *, unsent: float = 0.0) -> None:
        if self.is_alive:
            self.is_alive = self.is_stopped = False
            self.connection.engine_gone(unsent=unsent)
            self._exited.set_result(_KILLED)

    def be_killed(self, *, unsent: float) -> None:
        """Die of somebody outside the service."""
        self.was_ended_by_others = self.is_alive
        self.die(unsent=unsent)

    def hang(self) -> None:
        self.is_hanging = True

    def freeze(self, seconds: float) -> None:
        """It does not get to run for a while."""
        self.is_stopped = True
        self._loop.call_later(seconds, self._thaw)

    def _thaw(self) -> None:
        self.is_stopped = False
        self._wake()

    def hang_in_hook(self) -> None:
        """The call under way never returns: for whoever is in it."""
        self.culprit = read_blame(self._blame)
        self.is_hanging = self._is_mute = True

    # engine.Channel

    def receive(self, timeout_s: float | None) -> list[ToEngine]:
        arrived, self._arrived = self._arrived, []
        if not arrived and timeout_s != 0 and not self._has_waited:
            raise _Idle(timeout_s)
        return arrived

    def send(self, message: ToFront) -> None:
        self._said.append(message)

    # its life

    def _receive(self, message: ToEngine) -> None:
        if isinstance(message, Start):
            self._loop.call_later(0.2 * self._chance.random(), self._load, message.config)
            return
        for submit in message.rows if isinstance(message, Resubmit) else (message,):
            if isinstance(submit, Submit) and self._engine is not None:
                for rank in range(submit.n):
                    self._runner.choice_of[submit.request + rank] = submit.choice + rank
                    if POISON in memoryview(submit.prompt).cast("i"):
                        self._runner.poisoned.add(submit.request + rank)
        self._arrived.append(message)
        self._wake()

    def _load(self, config: EngineConfig) -> None:
        if not self.is_alive:
            return
        if self._loading is not Loading.WELL:
            if self._loading is Loading.FAILS:
                self.connection.send(Failed("There is no memory left."))
            self.die()
            return
        limits = SchedulerConfig(**LIMITS, eos_token_ids=frozenset({EOS}), watermark=0.0)
        policies = EnginePolicies(
            config.policies,
            timer=self._loop.time,
            guard=self._guard,
            blame=Blame(self._blame),
            library=self._library,
        )
        policies.restore(config.policy_faults, config.hook_uses)
        self.scheduler = Scheduler(limits, policies.decisions)
        self._runner = _Runner(limits)
        self._engine = EngineLoop(
            self,  # type: ignore[arg-type]
            self.scheduler,
            self._runner,
            {},
            policies,
            clock=self._loop.time,
            patience=self,  # type: ignore[arg-type]
        )
        self.connection.send(self._ready())
        self._wake()

    def _ready(self) -> Ready:
        limits = {name: LIMITS[name] for name in Ready.__struct_fields__ if name in LIMITS}
        return Ready(
            **limits,
            vocab_size=self._vocab_size,
            eos_token_ids=(EOS,),
            device="cpu",
            dtype="float32",
            load_s=0.1,
        )

    def of(self, plan: StepPlan) -> float:
        """As `engine.patience.Patience`: some passes take long, and are announced."""
        is_long = self.has_long_passes and self._chance.random() < 0.05
        self._step_s = _LONG_PASS_S if is_long else _STEP_S * self._chance.random()
        return 1.5 * _LONG_PASS_S if is_long else 0.0

    def _wake(self, has_waited: bool = False) -> None:
        if self._engine is not None and not self._turn_is_due:
            self._turn_is_due = True
            self._has_waited = has_waited
            self._loop.call_later(0.0, self._turn)

    def _turn(self) -> None:
        self._turn_is_due = False
        if not self.is_alive or self.is_stopped or self.is_hanging or self._engine is None:
            return
        self._step_s = 0.0
        try:
            goes_on = self._engine.turn()
        except _Idle as idle:
            if idle.wait_s is not None:
                self._loop.call_later(idle.wait_s, self._wake, True)
            return
        except _Poisoned:
            self.num_poisoned += 1
            self._speak()
            self.die()
            return
        self._has_waited = False
        self._speak()
        if not goes_on:
            self.die()
            return
        if self._chance.random() < _CHECKED and self.scheduler is not None:
            self.scheduler.check_invariants()
        self._turn_is_due = True
        self._loop.call_later(self._step_s, self._turn)

    def _speak(self) -> None:
        said, self._said = self._said, []
        if not self._is_mute:
            for message in said:
                self.connection.send(message)


class _Runner(FakeRunner):
    """Knows which requests take the process with them."""

    def __init__(self, limits: SchedulerConfig) -> None:
        super().__init__(limits.num_blocks, limits.block_size, limits.num_host_blocks)
        self.poisoned: set[int] = set()

    def execute(self, plan: StepPlan) -> StepOutcome:
        if self.poisoned and not self.poisoned.isdisjoint(plan.requests.tolist()):
            raise _Poisoned
        return super().execute(plan)
