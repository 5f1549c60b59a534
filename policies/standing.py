"""What became of policies and their hooks: counts, strikes, quarantines and rests."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

STRIKES = 3
WINDOW_S = 60.0
REST_S = 0.1  # after an overrun, in which streams make up for it


@dataclass(slots=True)
class Tally:
    """What one hook of one policy did so far."""

    calls: int = 0
    faults: int = 0
    excused: int = 0  # calls interrupted for lack of time that others had spent, or the machine
    passed_over: int = 0  # not asked: quarantined, at rest, at fault, or too little time left
    spent_s: float = 0.0
    last_error: str = ""
    failed_s: float = -math.inf  # the last time, on the runner's timer


class Fault(NamedTuple):
    """What was wrong with a call."""

    text: str
    trace: str = ""  # where what it raised came through, if anybody wants to know


class Unanswered(NamedTuple):
    """How often a hook gave no answer that counts."""

    policy: str
    hook: str
    faults: int
    last_error: str
    last_fault_age_s: float  # 0 without faults
    passed_over: int
    excused: int


class FaultCount(NamedTuple):
    """For whoever watches: a hook that has failed, and whether its policy is quarantined now."""

    policy: str
    hook: str
    faults: int
    quarantined: bool


class CountedFaults(Protocol):
    """A `FaultCount`, also as it comes from another process."""

    @property
    def policy(self) -> str: ...
    @property
    def hook(self) -> str: ...
    @property
    def faults(self) -> int: ...
    @property
    def quarantined(self) -> bool: ...


class CountedUse(Protocol):
    """How often one hook of one policy was asked, and what became of that; as in `Tally`."""

    @property
    def policy(self) -> str: ...
    @property
    def hook(self) -> str: ...
    @property
    def calls(self) -> int: ...
    @property
    def spent_s(self) -> float: ...
    @property
    def passed_over(self) -> int: ...
    @property
    def excused(self) -> int: ...


@dataclass(slots=True)
class Standing:
    """What a policy's failures have led to."""

    trusted: bool
    quarantined: bool = False
    failed_step: int | None = None
    rests_until_s: float = -math.inf
    is_spoilt: bool = False  # its instance was interrupted, and may be half changed
    spent_s: float = 0.0  # of the present budget
    lacked_time: bool = False  # and the log says so
    was_told_excused: bool = False  # by the log
    strikes: deque[float] = field(default_factory=lambda: deque(maxlen=STRIKES))

    def is_out(self, step_id: int, now_s: float) -> bool:
        """Whether it is not asked, whatever time is left."""
        return self.quarantined or self.failed_step == step_id or now_s < self.rests_until_s

    def rest(self, now_s: float) -> None:
        """It is not asked for a while."""
        self.rests_until_s = now_s + REST_S

    def strike(self, step_id: int, now_s: float) -> bool:
        """It has failed; whether that was once too often."""
        self.failed_step = step_id
        self.strikes.append(now_s)
        return len(self.strikes) == STRIKES and now_s - self.strikes[0] <= WINDOW_S

    def forgive(self) -> None:
        """It begins anew."""
        self.quarantined = self.is_spoilt = self.lacked_time = self.was_told_excused = False
        self.rests_until_s = -math.inf
        self.strikes.clear()


@dataclass(slots=True)
class Hook:
    """One hook of one policy."""

    policy: str
    name: str
    number: int  # for the blame
    standing: Standing
    told: bool = False  # of a fault, in the log
    was_excused: bool = False  # at its latest call: it took too long, perhaps without its fault
    tally: Tally = field(default_factory=Tally)
