"""What start-up measures, before serving: seconds for a prefill token, seconds to copy a block."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from cadenza.engine.block_copies import BlockCopier
from cadenza.scheduler.plan import Copies, StepPlan

FEW_TOKENS = 64  # measured, where they keep the device busy
_MEASURED_BLOCKS = 4
_BUDGET_STEP = 16  # tokens
_LEAST_BUDGET, MOST_BUDGET = 64, 2048  # tokens
_NO_PAIRS = np.empty((0, 2), dtype=np.int32)
NO_COPIES = Copies(_NO_PAIRS, _NO_PAIRS, _NO_PAIRS)


def token_seconds(
    run: Callable[[StepPlan], object],
    *,
    num_blocks: int,
    block_size: int,
    longest: int,
    tokens: int,
) -> float:
    """Return how long one token of a prefill takes.

    run: computes a plan, and returns once it is computed. Overwrites the first blocks of the
    cache. longest: positions that the model has; tokens: to measure, where there is room for them.
    """
    plan = _prefill_plan(min(tokens, num_blocks * block_size, longest), block_size)
    run(plan)
    # the quicker of two: a busy neighbour only ever adds time
    return min(_seconds(lambda: run(plan)) for _ in range(2)) / plan.num_tokens


def tokens_within(step_time_s: float, token_s: float) -> int:
    """Return how many prompt tokens a step may compute to last about `step_time_s`.

    A multiple of 16 from 64 to 2048.
    """
    tokens = int(step_time_s / token_s)
    return min(max(tokens // _BUDGET_STEP * _BUDGET_STEP, _LEAST_BUDGET), MOST_BUDGET)


def copy_block_seconds(copier: BlockCopier, *, num_blocks: int, num_host_blocks: int) -> float:
    """Return how long one block takes to the host, or back; 0 where the host has room for none.

    Leaves the cache as it was, and overwrites the first host blocks.
    """
    count = min(_MEASURED_BLOCKS, num_blocks, num_host_blocks)
    if not count:
        return 0.0
    pairs = np.repeat(np.arange(count, dtype=np.int32)[:, None], 2, axis=1)
    there_and_back = Copies(swap_out=pairs, on_write=_NO_PAIRS, swap_in=pairs)
    # the first takes the memory from the system
    return min(_copy_seconds(copier, there_and_back) for _ in range(3)) / (2 * count)


def _copy_seconds(copier: BlockCopier, copies: Copies) -> float:
    copier.run(copies)
    return sum(copier.finish())


def _seconds(run: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    run()
    return time.perf_counter() - start_s


def _prefill_plan(count: int, block_size: int) -> StepPlan:
    return StepPlan(
        step_id=0,
        block_size=block_size,
        requests=np.zeros(1, dtype=np.int64),
        seats=np.zeros(1, dtype=np.int32),
        num_context=np.zeros(1, dtype=np.int32),
        num_new=np.array([count], dtype=np.int32),
        num_tokens=count,
        histories=np.zeros((1, count), dtype=np.int32),
        tables=np.arange(-(-count // block_size), dtype=np.int32)[None],
        samples=np.zeros(1, dtype=np.int32),
        sample_requests=np.zeros(1, dtype=np.int64),
        sample_seats=np.zeros(1, dtype=np.int32),
        seated=(),
        copies=NO_COPIES,
    )
