"""The load of `make bench-scheduler`, the same for every scheduler that is measured.

NumPy alone and nothing of Cadenza, because a peer's script runs this under a Python of its own.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]

NUM_BLOCKS = 200_000
BLOCK_SIZE = 16
MAX_MODEL_LEN = 8192
TOKEN_BUDGET = 8192
VOCABULARY = 49_000

PROMPT = 512  # tokens
STEADY_TOKENS = 1500  # more than any step here reaches
CHURN_TOKENS = (70, 134)  # outputs; 102 on average, so that about 1 % of rows end each step

TURNOVER_WAVE = 4  # requests that enter in one step while seats fill, prefilled in that step

STEPS = 256  # measured; a multiple of the block size
ROUND = 32  # steps of these that one side takes before it is the other's turn
# Steps before each round that are not measured, but for the first, which is told apart: the caches
# that the other's turn took away come back in them. See `Measured.first_us`
RETURN_STEPS = 4
SETTLE_STEPS = 32
SEED = 20_261

Clock = Callable[[], float]  # seconds
# Where others load the machine, the time of the thread alone tells more than the time that passes
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "thread": time.thread_time}


class Case(NamedTuple):
    """What the rows do, how many of them run, and how many wait."""

    name: str  # "steady", "turnover" or "churn"
    running: int
    waiting: int

    @property
    def warm_up_steps(self) -> int:
        """Until every seat is taken by a row that decodes, and ends and admissions are even.

        The churn of 1,024 rows has then filled the pool with cached blocks, and evicts from there.
        """
        prefills = 2 * self.running * PROMPT // TOKEN_BUDGET
        filling = {
            "steady": prefills,
            "turnover": self.running // TURNOVER_WAVE,
            "churn": prefills + 3 * CHURN_TOKENS[1],
        }
        return filling[self.name] + SETTLE_STEPS

    def first_wave(self, step: int) -> int:
        """How many of those who fill the seats arrive before this step."""
        if self.name == "turnover":
            return TURNOVER_WAVE if step * TURNOVER_WAVE < self.running else 0
        return self.running if step == 0 else 0

    def max_tokens(self, request: int) -> int:
        if self.name == "steady":
            return STEADY_TOKENS
        if self.name == "turnover":
            if request >= self.running:
                return self.running
            # Prefilled in the step that it enters, request i is the i-th to end after the wave
            steps_left = self.running // TURNOVER_WAVE - request // TURNOVER_WAVE
            return steps_left + request + 1
        least, most = CHURN_TOKENS
        if request < self.running:  # somewhere in the middle of their lives
            least, most = 1, (least + most) // 2
        return int(_rng(1, request).integers(least, most, endpoint=True))

    def prompt(self, request: int) -> Int32Array:
        rng, length = _rng(0, request), PROMPT
        if request < self.running:
            if self.name == "turnover":  # as long as if it had generated since its life began
                length += self.running - request
            else:
                length += int(rng.integers(-BLOCK_SIZE // 2, BLOCK_SIZE // 2))
        return rng.integers(VOCABULARY, size=length, dtype=np.int32)


class Stepped(NamedTuple):
    """One step of a scheduler."""

    took_s: float
    admitted: int
    ending: int  # rows that got their last token: their seats are free in the next step


class Side(Protocol):
    """A scheduler under measurement, and the runner that it believes in."""

    def add(self, request: int, prompt: Int32Array, max_tokens: int) -> float:
        """Let a request arrive; seconds that this took."""
        ...

    def step(self) -> Stepped: ...


class Measured(NamedTuple):
    """Microseconds of some steps, and of the arrivals between them."""

    steps_us: list[float]
    first_us: list[float]  # of the step that a side begins its turn with, when its caches are cold
    arrivals_us: list[float]
    ends: int

    def and_then(self, other: Measured) -> Measured:
        """Both, one after the other."""
        return Measured(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Load:
    """One case on one side, warmed up and ready to be measured round by round.

    Whoever ends is followed by a new arrival before the next step, so that as many wait before
    each step; where nobody else waits, the newcomer takes the seat that this very step frees.
    """

    def __init__(self, case: Case, side: Side) -> None:
        self._case = case
        self._side = side
        self._requests = 0
        self._ending = 0
        self._arrivals_us: list[float] = []
        for step in range(case.warm_up_steps):
            self.step(case.first_wave(step))
        self._arrive(case.waiting)
        gc.collect()  # the garbage of a case before this one is not this one's
        for _ in range(SETTLE_STEPS):
            self.step()

    def measure(self) -> Measured:
        """One round."""
        first, *_ = [self.step() for _ in range(RETURN_STEPS)]
        self._arrivals_us.clear()
        steps = [self.step() for _ in range(ROUND)]
        _check(self._case, steps)
        ends = sum(step.ending for step in steps)
        took_us = [1e6 * step.took_s for step in steps]
        return Measured(took_us, [1e6 * first.took_s], [*self._arrivals_us], ends)

    def step(self, arrivals: int = 0) -> Stepped:
        self._arrive(arrivals + self._ending)
        stepped = self._side.step()
        self._ending = stepped.ending
        return stepped

    def _arrive(self, requests: int) -> None:
        for request in range(self._requests, self._requests + requests):
            prompt, max_tokens = self._case.prompt(request), self._case.max_tokens(request)
            self._arrivals_us.append(1e6 * self._side.add(request, prompt, max_tokens))
        self._requests += requests


def _check(case: Case, steps: list[Stepped]) -> None:
    """Steady and turnover are exact; a scheduler that did something else was not measured."""
    if case.name != "churn":
        changes = int(case.name == "turnover")
        expected = {(changes, changes)}
        seen = {(step.admitted, step.ending) for step in steps}
        assert seen == expected, f"{case}: (admitted, ending) {sorted(seen)}"


def _rng(stream: int, request: int) -> np.random.Generator:
    return np.random.default_rng((SEED, stream, request))
