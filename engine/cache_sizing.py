"""How much of a device's memory is left for the KV cache, once all else has taken its part."""

from __future__ import annotations

import numpy as np
import torch

from cadenza.engine.calibration import NO_COPIES
from cadenza.engine.device import Memory
from cadenza.engine.runner import ModelRunner
from cadenza.engine.sampler import Sampler
from cadenza.scheduler.plan import Seated, StepPlan
from cadenza.wire.messages import Sampling

_GIB = 1 << 30
# What takes the most memory: logits are changed for penalties, and filtered
_COSTLY = Sampling(top_p=0.9, repetition_penalty=1.1)


def blocks_beside(memory: Memory, share: float, *, block_bytes: int, staging_bytes: int) -> int:
    """Return how many blocks fit into what is free of the share of all memory that we may have.

    Raises ValueError where that is less than one.
    """
    left = int(memory.free - (1 - share) * memory.total) - staging_bytes
    if left < block_bytes:
        raise ValueError(
            f"gpu_memory_utilization is {share}, but of {memory.total / _GIB:.1f} GiB only"
            f" {memory.free / _GIB:.1f} GiB are free beside the weights and the largest step, which"
            f" leaves no block of {block_bytes} bytes: raise it, free memory, or lower"
            " max_num_batched_tokens or max_num_seqs."
        )
    return left // block_bytes


def rehearse_largest(
    runner: ModelRunner, sampler: Sampler, *, num_rows: int, num_tokens: int, most: int
) -> None:
    """Capture the largest graph, and compute the largest step over the first block alone.

    In this order: who captures gives back first what the allocator keeps of earlier steps, so that
    a step's memory would count as free. num_tokens: of the step; most: of a row. Raises ValueError
    where they do not fit into memory.
    """
    plan = largest_plan(num_rows, num_tokens, most, runner.cache.shape.block_size)
    tokens = np.zeros(1, dtype=np.int32)
    for seat in range(plan.num_rows):
        sampler.seat(Seated(seat, 0, tokens, 1), _COSTLY, 0)
    try:
        runner.capture_largest()
        runner.execute(plan)
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"The largest step, {plan.num_tokens} tokens of {plan.num_rows} rows, does not fit into"
            " memory beside the weights: lower max_num_batched_tokens or max_num_seqs."
        ) from error
    finally:
        for seat in range(plan.num_rows):
            sampler.seat(Seated(seat, 0, tokens, 1), Sampling(), 0)


def largest_plan(num_rows: int, num_tokens: int, most: int, block_size: int) -> StepPlan:
    """Return a step of so many tokens, or what so many rows may have, of which each samples.

    All blocks are the first: what they hold means nothing.
    """
    rows = min(num_rows, num_tokens)
    num_new = np.full(rows, num_tokens // rows, dtype=np.int32)
    num_new[: num_tokens % rows] += 1
    num_new = np.minimum(num_new, most)
    longest, numbers = int(num_new[0]), np.arange(rows, dtype=np.int32)
    return StepPlan(
        step_id=0,
        block_size=block_size,
        requests=np.zeros(rows, dtype=np.int64),
        seats=numbers,
        num_context=np.zeros(rows, dtype=np.int32),
        num_new=num_new,
        num_tokens=int(num_new.sum()),
        histories=np.zeros((rows, longest), dtype=np.int32),
        tables=np.zeros((rows, -(-longest // block_size)), dtype=np.int32),
        samples=numbers,
        sample_requests=np.zeros(rows, dtype=np.int64),
        sample_seats=numbers,
        seated=(),
        copies=NO_COPIES,
    )
