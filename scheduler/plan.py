"""What passes between the scheduler and the model runner: a plan, and its outcome.

Both are frozen, made of NumPy arrays, and know nothing of torch. Rows are in the order in which
the runner lays them out; element i of every per-row array is the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    tokens: Int32Array  # all that is known: the prompt, then the output so far; not to be kept
    prompt_tokens: int


class Copies(NamedTuple):
    """Whole blocks to copy before the forward pass, [copies, 2] each: from, to.

    All of one kind before the next, in this order: a block that is swapped out may be written by
    any later copy, and by the pass itself. No block is written twice.
    """

    swap_out: Int32Array  # device block to host block
    on_write: Int32Array  # device to device, because a fork is about to write a shared block
    swap_in: Int32Array  # host to device


NO_COPIES = Copies(*[np.empty((0, 2), dtype=np.int32)] * 3)


class Layout(NamedTuple):
    """The new tokens of a plan, row after row, and where they go."""

    tokens: Int32Array  # [tokens], ids
    positions: Int32Array  # [tokens], in the sequences of their rows
    blocks: Int32Array  # [tokens]
    offsets: Int32Array  # [tokens], in their blocks
    block_tables: Int32Array  # [rows, most blocks any row uses]; what lies beyond means nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One forward pass: what is copied first, which tokens to compute, what is sampled.

    Row i computes `num_new[i]` tokens after the `num_context[i]` tokens whose keys and values are
    already in the cache. Sample j is drawn from the logits after the last new token of row
    `samples[j]`, with the settings of `sample_seats[j]`: one sample a row, except where a prompt
    with several choices is complete, and each choice draws its first token.
    A plan without rows may still have copies and seats.

    `histories` and `tables` are the scheduler's own, for all seats: to be read, and as they are
    until `Scheduler.step` is called with the plan's outcome; whoever runs the plan is done by then.
    Nothing is gathered from them before it is needed.
    """

    step_id: int
    block_size: int
    requests: Int64Array  # [rows]
    seats: Int32Array  # [rows]
    num_context: Int32Array  # [rows]
    num_new: Int32Array  # [rows], at least 1 each
    num_tokens: int  # sum(num_new)
    histories: Int32Array  # [seats, longest], token ids by position
    tables: Int32Array  # [seats, most], blocks in sequence order
    samples: Int32Array  # [samples], index of a row; ascending
    sample_requests: Int64Array  # [samples]
    sample_seats: Int32Array  # [samples]
    seated: tuple[Seated, ...]  # new seats, in force before this pass
    copies: Copies

    @property
    def num_rows(self) -> int:
        return len(self.requests)

    def layout(self) -> Layout:
        """What the runner computes on; to be asked for once."""
        size, seats = self.block_size, self.seats.repeat(self.num_new)
        starts = self.num_context - self.num_new.cumsum(dtype=np.int32) + self.num_new
        positions = np.arange(self.num_tokens, dtype=np.int32) + starts.repeat(self.num_new)
        places = positions // size
        widest = int(places.max(initial=-1)) + 1
        return Layout(
            tokens=self.histories[seats, positions],
            positions=positions,
            blocks=self.tables[seats, places],
            offsets=positions - places * size,
            block_tables=self.tables[self.seats, :widest],
        )


class Logprobs(NamedTuple):
    """Log-probabilities at one sampled position, before penalties, temperature and filters."""

    sampled: float
    top_ids: Int32Array  # [wanted], best first
    top_logprobs: Float32Array  # [wanted]


class PromptScores(NamedTuple):
    """Log-probabilities of successive tokens of one prompt, given what comes before each."""

    request: int  # of the row, or of the first of its choices
    first: int  # index in the prompt of the first token that is scored
    logprobs: Float32Array  # [tokens]
    ranks: Int32Array  # [tokens], 1: the most probable
    top_ids: Int32Array  # [tokens, wanted], best first
    top_logprobs: Float32Array  # [tokens, wanted]


class StepTimes(NamedTuple):
    """How long the parts of a step took, in seconds; 0 where there was nothing to do."""

    forward_s: float = 0.0  # the pass and the sampling
    swap_out_s: float = 0.0
    swap_in_s: float = 0.0


NOT_TIMED = StepTimes()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What the runner made of a plan, sample by sample."""

    step_id: int
    tokens: Int32Array  # [samples], -1 where failed
    failed: BoolArray  # [samples], True: these logits were not finite; the choice ends
    logprobs: Mapping[int, Logprobs] = field(default_factory=dict)  # sample -> wanted logprobs
    prompt_scores: Sequence[PromptScores] = ()  # of prompts that want them
    times: StepTimes = NOT_TIMED


class Runner(Protocol):
    """Executes plans. The scheduler never calls it; the engine's loop and the tests do."""

    def launch(self, plan: StepPlan) -> Callable[[], StepOutcome]:
        """Copy blocks in the plan's order, run one forward pass, and sample.

        Returns what waits for the outcome, to be called once, before the next launch. Where a
        device computes beside the host all is under way by then; elsewhere it is done in the
        waiting, so that what the caller does in between waits for no pass.
        """
        ...
