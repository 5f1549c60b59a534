"""A model runner without a model: each token is a hash of all tokens before it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from cadenza.scheduler.plan import StepOutcome, StepPlan

VOCABULARY = 1000
EOS = 0  # never sampled

_START = b""


def oracle(prompt: Sequence[int], num: int) -> list[int]:
    """The `num` tokens that a request must get, computed alone."""
    state, position = _START, 0
    generated: list[int] = []
    for token in prompt:
        state, position = _advance(state, token, position), position + 1
    for _ in range(num):
        generated.append(_sample(state))
        state, position = _advance(state, generated[-1], position), position + 1
    return generated


def _advance(state: bytes, token: int, position: int) -> bytes:
    """What stands for keys and values: it depends on every token so far, and on its place."""
    part = token.to_bytes(4, "little") + position.to_bytes(4, "little")
    return blake2b(state + part, digest_size=8).digest()


def _sample(state: bytes) -> int:
    return 1 + int.from_bytes(state[:4], "little") % (VOCABULARY - 1)


class FakeRunner:
    """Knows only what plans wrote into its cache, slot by slot.

    A wrong slot, table, position or seat, a block reused too early, or one matched after another
    prefix changes the token or trips an assertion. Requests in `fail` fail in every step.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._cache: list[bytes | None] = [None] * (num_blocks * block_size)
        self._block_size = block_size
        self._request_at: dict[int, int] = {}  # seat -> request, as plans announced it
        self.fail: set[int] = set()

    def execute(self, plan: StepPlan) -> StepOutcome:
        self._check(plan)
        tokens = np.full(plan.num_rows, -1, dtype=np.int32)
        end = 0
        for row in range(plan.num_rows):
            start, end = end, end + int(plan.num_new[row])
            state = self._compute(plan, row, start, end)
            if plan.samples[row]:
                tokens[row] = _sample(state)
        failed = np.isin(plan.requests, list(self.fail))
        return StepOutcome(step_id=plan.step_id, tokens=tokens, failed=failed)

    def _compute(self, plan: StepPlan, row: int, start: int, end: int) -> bytes:
        """Write the row's new tokens; the state after the last of them."""
        state = self._before(plan, row)
        for index in range(start, end):
            state = _advance(state, int(plan.tokens[index]), int(plan.positions[index]))
            self._cache[int(plan.slots[index])] = state
        length = int(plan.num_context[row] + plan.num_new[row])
        assert self._cache[self._slot(plan, row, length - 1)] == state, "slots are not the table's"
        return state

    def _before(self, plan: StepPlan, row: int) -> bytes:
        context = int(plan.num_context[row])
        if context == 0:
            return _START
        state = self._cache[self._slot(plan, row, context - 1)]
        assert state is not None, "the row reads a slot that nobody wrote"
        return state

    def _slot(self, plan: StepPlan, row: int, position: int) -> int:
        block = int(plan.block_tables[row, position // self._block_size])
        return block * self._block_size + position % self._block_size

    def _check(self, plan: StepPlan) -> None:
        self._request_at.update((seated.seat, seated.request) for seated in plan.seated)
        seated = [self._request_at[seat] for seat in plan.seats.tolist()]
        assert seated == plan.requests.tolist(), "a row sits where another request was seated"
        positions = [
            position
            for start, count in zip(plan.num_context, plan.num_new, strict=True)
            for position in range(int(start), int(start + count))
        ]
        assert plan.positions.tolist() == positions, "positions do not follow the context"
        assert len(set(plan.slots.tolist())) == plan.num_tokens, "two tokens share a slot"
