"""Every hook of new policies called once before they decide anything, on a small made-up view.

So what they import late is imported, and what fails at once is known before anybody relies on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from logging import CRITICAL
from typing import Any

import numpy as np
import structlog

from cadenza.policies.arrivals import Arrival, ArrivalColumns, ServiceView, table_of
from cadenza.policies.cached_blocks import CachedBlocks
from cadenza.policies.contract import ARGUMENTS, ENGINE_HOOKS, FRONT_HOOKS
from cadenza.policies.decisions import Decisions
from cadenza.policies.errors import ProfileError
from cadenza.policies.front_decisions import FrontDecisions
from cadenza.policies.profile import Profile
from cadenza.policies.runner import PolicyRunner
from cadenza.policies.views import PreemptionCosts, RequestColumns, StepView

_NOW_S = 100.0

# Whoever tries policies is told of their faults by the error, and needs no log
_silent = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(CRITICAL))

_SEATED = ("running", "victims", "admitted", "resumed", "generated", "finished")
_WAITING = ("waiting", "arrived", "candidates", "preempted")


def warm_up(profile: Profile, hooks: Collection[str] = ENGINE_HOOKS + FRONT_HOOKS) -> None:
    """Call these hooks of a profile that nobody else uses; its instances learn nonsense by it.

    Raises:
        ProfileError: policies that failed, with what they raised or answered.
    """
    runner = PolicyRunner(profile, log=_silent)
    decisions = Decisions(profile, runner)
    views = made_up_views()
    for hook in (hook for hook in ENGINE_HOOKS if hook in hooks):
        ask: Callable[..., object] = getattr(decisions, hook)
        ask(**{name: views[name] for name in ARGUMENTS[hook]})
    front, arrivals, service = FrontDecisions(profile, runner), views["arrivals"], views["service"]
    if {*FRONT_HOOKS} <= {*hooks}:
        for gate in profile.gates:  # all of them, whatever others refuse
            front.ask_gate(gate, arrivals, service)
        front.shed_load(arrivals, service)
    faults = [
        f"policy {policy!r} fails in {hook} when it is tried: {tally.last_error}"
        for (policy, hook), tally in runner.tallies.items()
        if tally.faults
    ]
    if faults:
        raise ProfileError(*faults)


def made_up_views() -> Mapping[str, Any]:
    """One view for every argument that a hook may have, by the argument's name.

    What `shed_load` calls `waiting` is like `arrivals`.
    """
    seated, waiting = _requests(3, seated=True), _requests(3, seated=False)
    costs = PreemptionCosts(
        recompute_tokens=np.full(3, 40),
        recompute_s=np.full(3, 0.04),
        swap_blocks=np.full(3, 2),
        swap_s=np.full(3, 0.002),
        free_host_blocks=16,
    )
    step = StepView(
        step_id=1,
        now_s=_NOW_S,
        free_blocks=40,
        cached_blocks=8,
        total_blocks=64,
        block_size=16,
        free_seats=5,
        token_budget=256,
        free_host_blocks=16,
        preemptions=0,
        token_s=0.001,
        step_s=0.02,
    )
    return {
        **dict.fromkeys(_SEATED, seated),
        **dict.fromkeys(_WAITING, waiting),
        "candidate": _requests(1, seated=False),
        "blocks": _blocks(),
        "costs": costs,
        "step": step,
        "arrivals": _arrivals(),
        "service": _service(),
    }


def _arrivals() -> ArrivalColumns:
    """Calls that have come one second after another, the last of them just now."""
    arrivals = [
        Arrival(
            arrival_s=_NOW_S - 2.0 + rank,
            choices=1 + rank % 2,
            prompt_tokens=40 + 8 * rank,
            max_tokens=64,
            priority=rank - 1,
            tenant=rank,
            tenant_queued=min(rank, 1),
            deadline_s=math.inf if rank == 0 else _NOW_S + 30.0,
            ttft_target_s=math.inf if rank == 0 else 20.0,
            tpot_target_s=math.inf if rank == 0 else 0.2,
        )
        for rank in range(3)
    ]
    return ArrivalColumns(table_of([arrival.packed() for arrival in arrivals]))


def _service() -> ServiceView:
    return ServiceView(
        step_id=1,
        now_s=_NOW_S,
        queued=3,
        max_queued=256,
        queued_tokens=88,
        wait_s=1.5,
        running=3,
        free_blocks=40,
        total_blocks=64,
        block_size=16,
    )


def _blocks() -> CachedBlocks:
    places = np.arange(4)
    columns = {
        "block": places[::-1],
        "last_use": places,
        "published": 1 + places[::-1],
        "continued": places > 1,
    }
    return CachedBlocks(columns, places)


def _requests(num: int, *, seated: bool) -> RequestColumns:
    """Requests that arrived one second after another, some tokens into their lives."""
    ranks = np.arange(num, dtype=np.int64)
    prompt = 40 + 8 * ranks
    generated = 5 + ranks if seated else np.zeros(num, dtype=np.int64)
    arrival_s = _NOW_S - 10.0 + ranks
    columns: dict[str, Any] = {
        "request": ranks + 1,
        "choices": np.ones(num, dtype=np.int64),
        "arrival": ranks + 1,
        "arrival_s": arrival_s,
        "priority": ranks - 1,
        "tenant": ranks,
        "deadline_s": np.where(ranks == 0, np.inf, _NOW_S + 30.0),
        "ttft_target_s": np.where(ranks == 0, np.inf, 20.0),
        "tpot_target_s": np.where(ranks == 0, np.inf, 0.2),
        "waits_since_s": arrival_s,
        "last_run_s": np.full(num, _NOW_S) if seated else arrival_s,
        "prompt_tokens": prompt,
        "num_tokens": prompt + generated,
        "computed_tokens": prompt + generated - 1 if seated else np.zeros(num, dtype=np.int64),
        "generated_tokens": generated,
        "max_tokens": np.full(num, 64),
        "predicted_tokens": np.where(ranks == 0, 0, 32),
        "cached_tokens": np.zeros(num, dtype=np.int64) if seated else 16 * (ranks % 2),
        "host_tokens": np.zeros(num, dtype=np.int64),
        "next_block_key": np.zeros(num, dtype=np.int64) if seated else ranks + 1,
        "blocks_held": -(-(prompt + generated) // 16) if seated else np.zeros(num, dtype=np.int64),
        "blocks_alone": 1 + ranks if seated else np.zeros(num, dtype=np.int64),
        "admission": ranks if seated else np.full(num, -1),
        "preemptions": np.zeros(num, dtype=np.int64),
        "overtakes": np.zeros(num, dtype=np.int64) if seated else ranks,
        "parked": np.zeros(num, dtype=bool),
        "resumed": ranks == 2,
    }
    return RequestColumns(columns, ranks.astype(np.intp))
