"""Situations that hooks may be asked in, and sequences of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cadenza.policies.cached_blocks import CachedBlocks
from cadenza.policies.contract import ARGUMENTS, FRONT_HOOKS, OBSERVERS
from cadenza.policies.views import RequestColumns, StepView
from cadenza.testing.arrivals import random_arrivals, service_view
from cadenza.testing.tables import (
    COLUMNS,
    cached_blocks,
    preemption_costs,
    random_requests,
    request_columns,
    running_columns,
    step_view,
    table_columns,
)

Table = dict[str, npt.NDArray[Any]]

STEP_S = 0.02
_PREEMPTED = 2  # requests of each step of a life, which come back at once
STARTS_S = 1_000.0  # so that requests may have arrived before


_FIRST = ("on_arrived", "on_generated", "on_finished")
_LAST = ("on_preempted", "on_admitted", "on_resumed")
_ORDER = (*_FIRST, *(hook for hook in ARGUMENTS if hook not in _FIRST + _LAST), *_LAST)
_ABOUT_SOMEBODY = (*OBSERVERS, *FRONT_HOOKS, "allow_displacement", "predict_lengths")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One step: who waits, who runs, what has happened."""

    step: StepView
    waiting: RequestColumns
    running: RequestColumns
    arrived: RequestColumns
    preempted: RequestColumns
    admitted: RequestColumns
    resumed: RequestColumns
    finished: RequestColumns
    num_arrivals: int  # in one call to the front process, where as many wait as in the engine

    def calls(self, hooks: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """These hooks with arguments of their own, in the order in which they are asked.

        Events are told to nobody of nobody; no candidate and no arrival is nobody, as the contract
        says.
        """
        for hook in _ORDER:
            if hook in hooks:
                arguments = self._arguments(hook)
                told = arguments[ARGUMENTS[hook][0]]
                if len(told) or hook not in _ABOUT_SOMEBODY:
                    yield hook, arguments

    def _arguments(self, hook: str) -> dict[str, Any]:
        views: Mapping[str, Any] = {
            "step": self.step,
            "waiting": self.waiting,
            "candidates": self.waiting,
            "candidate": _some(self.waiting, slice(0, 1)),
            "running": self.running,
            "victims": self.running,
            "blocks": _blocks(len(self.waiting), self.step.step_id),
            "costs": preemption_costs(self.running, self.step.free_host_blocks),
            "arrived": self.arrived,
            "preempted": self.preempted,
            "admitted": self.admitted,
            "resumed": self.resumed,
            "generated": self.running,
            "finished": self.finished,
        }
        if hook in FRONT_HOOKS:
            views = self._at_the_front()
        return {name: views[name] for name in ARGUMENTS[hook]}

    def _at_the_front(self) -> Mapping[str, Any]:
        """What the front process sees meanwhile."""
        rng = random.Random(self.step.step_id)
        now_s = self.step.now_s
        queue = random_arrivals(len(self.waiting), rng, now_s=now_s)
        service = service_view(
            step_id=self.step.step_id,
            now_s=now_s,
            queued=int(queue.choices.sum()),
            queued_tokens=int(queue.prompt_tokens.sum()),
            running=len(self.running),
            free_blocks=self.step.free_blocks,
        )
        arrivals = random_arrivals(self.num_arrivals, rng, now_s=now_s)
        return {"arrivals": arrivals, "waiting": queue, "service": service}


def random_scene(num: int, seed: int, step_id: int = 1) -> Scene:
    """`num` requests that wait, and as many that run."""
    rng = random.Random(seed)
    now_s = STARTS_S + step_id * STEP_S
    running = random_requests(num, rng, now_s=now_s, running=True)
    waiting = random_requests(num, rng, now_s=now_s, first=num)
    return Scene(
        step=_step(step_id, rng.randrange(4)),
        waiting=waiting,
        running=running,
        arrived=_some(waiting, slice(num // 2, num)),
        preempted=_some(waiting, slice(0, num // 2)),
        admitted=_some(running, slice(0, num // 2)),
        resumed=_some(running, slice(0, num // 4)),
        finished=_some(running, slice(num // 2, num)),
        num_arrivals=num,
    )


def life(num: int, steps: int, seed: int, turnover: int | None = None) -> Iterator[Scene]:
    """A service of `num` requests that wait, of which `turnover` are admitted in each step.

    They run for two steps, and end; some are preempted in between. One in ten leaves without an
    end, as when a client hangs up. None: a quarter of them.
    """
    turnover = max(1, num // 4) if turnover is None else turnover
    rng = random.Random(seed)
    total = num + (steps + 3) * turnover
    # Copies, as one that found its way behind the views could write to them
    new, seats = ({name: each.copy() for name, each in t.items()} for t in _tables(total, seed))
    ends = new["request"] % 10 != 0
    for step_id in range(1, steps + 1):
        first = step_id * turnover
        came = first if step_id == 1 else first + num - turnover
        before = np.arange(max(0, first - turnover), first)
        ended = np.arange(max(0, first - 2 * turnover), max(0, first - turnover))
        back = before[:_PREEMPTED] + total
        entered = np.concatenate((back, np.arange(first, first + turnover)))
        yield Scene(
            step=_step(step_id, rng.randrange(4)),
            waiting=RequestColumns(new, np.arange(first, first + num)),
            running=RequestColumns(seats, np.concatenate((ended, before))),
            arrived=RequestColumns(new, np.arange(came, first + num)),
            preempted=RequestColumns(new, back),
            admitted=RequestColumns(seats, entered),
            resumed=RequestColumns(seats, back),
            finished=RequestColumns(seats, ended[ends[ended]]),
            num_arrivals=turnover,
        )


@lru_cache(maxsize=8)
def _tables(total: int, seed: int) -> tuple[Table, Table]:
    """So many requests while they wait and while they run, and again, once preempted."""
    everybody = random_requests(total, random.Random(seed), now_s=STARTS_S)
    again = {"preemptions": everybody.preemptions + 1, "admission": everybody.arrival}
    tables = (_copied(everybody), _seated(everybody))
    new, seats = (table_columns(**_joined(each, again)) for each in tables)
    return new, seats


def _joined(columns: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """These rows twice, the second time with other values in some columns."""
    second = columns | changed
    return {name: np.concatenate((each, second[name])) for name, each in columns.items()}


def _blocks(num: int, seed: int) -> CachedBlocks:
    rng = random.Random(seed)
    numbers = rng.sample(range(2 * num), num)
    published = rng.sample(range(1, 4 * num + 1), num)
    continued = [rng.random() < 0.6 for _ in range(num)]
    return cached_blocks(num, block=numbers, published=published, continued=continued)


def _step(step_id: int, preemptions: int) -> StepView:
    return step_view(
        step_id=step_id,
        now_s=STARTS_S + step_id * STEP_S,
        free_blocks=600,
        cached_blocks=200,
        free_host_blocks=40,
        preemptions=preemptions * step_id,
        token_s=1e-4,
        step_s=STEP_S,
    )


def _some(view: RequestColumns, chosen: slice) -> RequestColumns:
    return request_columns(**{name: each[chosen] for name, each in _copied(view).items()})


def _copied(view: RequestColumns) -> dict[str, Any]:
    return {name: getattr(view, name) for name in COLUMNS}


def _seated(view: RequestColumns) -> dict[str, Any]:
    """The same requests, running, each with a token."""
    lost = ("computed_tokens", "cached_tokens", "remaining_prefill", "next_block_key", "overtakes",
            "num_tokens", "blocks_held", "blocks_alone")  # fmt: skip
    kept = {name: each for name, each in _copied(view).items() if name not in lost}
    generated = np.minimum(view.generated_tokens + 1, view.max_tokens)
    changed = {"generated_tokens": generated, "admission": view.arrival}
    return _copied(running_columns(**{**kept, **changed}))
