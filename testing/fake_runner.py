"""A model runner without a model: each token is a hash of all tokens before it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from cadenza.scheduler.plan import StepOutcome, StepPlan

VOCABULARY = 1000
EOS = 0  # never sampled


def next_token(sequence: Sequence[int]) -> int:
    """A token that depends on every token before it; never EOS."""
    digest = blake2b(np.array(sequence, dtype="<i4").tobytes(), digest_size=4).digest()
    return 1 + int.from_bytes(digest, "little") % (VOCABULARY - 1)


def oracle(prompt: Sequence[int], num: int) -> list[int]:
    """The `num` tokens that a request must get, computed alone."""
    sequence = list(prompt)
    for _ in range(num):
        sequence.append(next_token(sequence))
    return sequence[len(prompt) :]


class FakeRunner:
    """Knows only what plans wrote into its cache, slot by slot.

    A wrong slot, table or position, or a block reused too early, changes the token or trips an
    assertion. Requests in `fail` fail in every step.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._cache = np.full(num_blocks * block_size, -1, dtype=np.int64)
        self._block_size = block_size
        self.fail: set[int] = set()

    def execute(self, plan: StepPlan) -> StepOutcome:
        assert len(set(plan.slots.tolist())) == plan.num_tokens, "two tokens share a slot"
        self._cache[plan.slots] = plan.tokens
        tokens = np.full(plan.num_rows, -1, dtype=np.int32)
        for row in np.flatnonzero(plan.samples):
            tokens[row] = next_token(self._sequence(plan, int(row)))
        failed = np.isin(plan.requests, list(self.fail))
        return StepOutcome(step_id=plan.step_id, tokens=tokens, failed=failed)

    def _sequence(self, plan: StepPlan, row: int) -> list[int]:
        index = np.arange(int(plan.num_context[row] + plan.num_new[row]))
        blocks = plan.block_tables[row][index // self._block_size]
        slots = blocks.astype(np.int64) * self._block_size + index % self._block_size
        sequence = self._cache[slots]
        assert (sequence >= 0).all(), "the row reads a slot that nobody wrote"
        return [int(token) for token in sequence]
