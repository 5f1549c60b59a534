"""What passes between the scheduler and the model runner: a plan, and its outcome.

Both are frozen, made of NumPy arrays, and know nothing of torch. Rows are in the order in which
the runner lays them out; element i of every per-row array is the same row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]


class Seated(NamedTuple):
    """A request that got a seat in this step; the runner keeps its sampling settings by seat."""

    seat: int
    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One forward pass: which tokens to compute, where their keys and values go.

    Row i computes `num_new[i]` tokens after the `num_context[i]` tokens whose keys and values are
    already in the cache. Its last new token is sampled from where `samples[i]` is true.
    """

    step_id: int
    requests: Int64Array  # [rows]
    seats: Int32Array  # [rows]
    num_context: Int32Array  # [rows]
    num_new: Int32Array  # [rows], at least 1 each
    samples: BoolArray  # [rows]
    tokens: Int32Array  # [sum(num_new)], row after row
    positions: Int32Array  # [sum(num_new)], position in the row's sequence
    slots: Int64Array  # [sum(num_new)], block * block_size + offset in the block
    block_tables: Int32Array  # [rows, most blocks any row uses], padded with 0
    seated: tuple[Seated, ...]  # new seats, in force before this pass

    @property
    def num_rows(self) -> int:
        return len(self.requests)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)


class Logprobs(NamedTuple):
    """Log-probabilities at one sampled position, before temperature and filters."""

    sampled: float
    top_ids: Int32Array  # [wanted], best first
    top_logprobs: Float32Array  # [wanted]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What the runner made of a plan, in the plan's row order."""

    step_id: int
    tokens: Int32Array  # [rows], the sampled token, or -1 where the plan did not sample
    failed: BoolArray  # [rows], True: this row's logits were not finite; the row ends
    logprobs: Mapping[int, Logprobs] = field(default_factory=dict)  # row -> wanted logprobs


class Runner(Protocol):
    """Executes plans. The scheduler never calls it; the engine's loop and the tests do."""

    def execute(self, plan: StepPlan) -> StepOutcome:
        """Run one forward pass and sample."""
        ...
