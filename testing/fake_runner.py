"""A model runner without a model: each token is a hash of all tokens before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from itertools import islice

import numpy as np

from cadenza.scheduler.plan import StepOutcome, StepPlan

VOCABULARY = 1000
EOS = 0  # never sampled

_START = b""


def oracle(prompt: Sequence[int], num: int, choice: int = 0) -> list[int]:
    """The `num` tokens that a choice of a request must get, computed alone."""
    state, position = _START, 0
    generated: list[int] = []
    for token in prompt:
        state, position = _advance(state, token, position), position + 1
    for _ in range(num):
        generated.append(_sample(state, choice))
        state, position = _advance(state, generated[-1], position), position + 1
    return generated


def _advance(state: bytes, token: int, position: int) -> bytes:
    """What stands for keys and values: it depends on every token so far, and on its place."""
    part = token.to_bytes(4, "little") + position.to_bytes(4, "little")
    return blake2b(state + part, digest_size=8).digest()


def _sample(state: bytes, choice: int) -> int:
    return 1 + (int.from_bytes(state[:4], "little") + 7919 * choice) % (VOCABULARY - 1)


class SteppedRunner:
    """A runner without a device, whose steps are executed in the waiting."""

    def launch(self, plan: StepPlan) -> Callable[[], StepOutcome]:
        return partial(self.execute, plan)

    def execute(self, plan: StepPlan) -> StepOutcome:
        """Do the whole step."""
        raise NotImplementedError


class FakeRunner(SteppedRunner):
    """Knows only what plans wrote into its cache, slot by slot.

    A wrong slot, table, position, copy or seat, a block reused too early, or one matched after
    another prefix changes the token or trips an assertion. All that a new seat need not compute is
    computed here again and compared. Requests in `fail` fail in every step.
    """

    def __init__(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        self.fail: set[int] = set()
        self.choice_of: dict[int, int] = {}  # request -> choice index; 0 if absent
        self._cache: list[bytes | None] = [None] * (num_blocks * block_size)
        self._host: list[list[bytes | None] | None] = [None] * num_host_blocks
        self._block_size = block_size
        self._request_at: dict[int, int] = {}  # seat -> request, as plans announced it
        self._states: dict[int, list[bytes]] = {}  # seat -> what each position must hold

    def execute(self, plan: StepPlan) -> StepOutcome:
        self._copy(plan)
        self._check(plan)
        self._seat(plan)
        self._check_contexts(plan)
        states = self._compute(plan)
        tokens = [
            _sample(states[row], self.choice_of.get(request, 0))
            for row, request in zip(
                plan.samples.tolist(), plan.sample_requests.tolist(), strict=True
            )
        ]
        failed = [request in self.fail for request in plan.sample_requests.tolist()]
        return StepOutcome(
            step_id=plan.step_id,
            tokens=np.where(failed, -1, tokens).astype(np.int32),
            failed=np.array(failed, dtype=bool),
        )

    def _copy(self, plan: StepPlan) -> None:
        written: set[int] = set()
        hosts = [host for _, host in plan.copies.swap_out.tolist()]
        assert len(set(hosts)) == len(hosts), "a host block is written by two copies"
        for device, host in plan.copies.swap_out.tolist():
            self._host[host] = self._block(device)
        sources = [self._block(source) for source, _ in plan.copies.on_write.tolist()]
        for (_, block), content in zip(plan.copies.on_write.tolist(), sources, strict=True):
            self._write(block, content, written)
        for host, device in plan.copies.swap_in.tolist():
            held = self._host[host]
            assert held is not None, "a host block is read that nobody wrote, or read twice"
            self._write(device, held, written)
            self._host[host] = None

    def _block(self, block: int) -> list[bytes | None]:
        return self._cache[block * self._block_size : (block + 1) * self._block_size]

    def _write(self, block: int, content: list[bytes | None], written: set[int]) -> None:
        assert block not in written, "a block is written by two copies"
        written.add(block)
        self._cache[block * self._block_size : (block + 1) * self._block_size] = content

    def _compute(self, plan: StepPlan) -> list[bytes]:
        """Write each row's new tokens; the states after the last of them."""
        layout = plan.layout()
        slots = (layout.blocks * self._block_size + layout.offsets).tolist()
        assert len(set(slots)) == plan.num_tokens, "two tokens share a slot"
        places = zip(layout.tokens.tolist(), layout.positions.tolist(), slots, strict=True)
        contexts = plan.num_context.tolist()
        states = [self._before(plan, row, context) for row, context in enumerate(contexts)]
        for row, new in enumerate(plan.num_new.tolist()):
            own = self._states[int(plan.seats[row])]
            for token, position, slot in islice(places, new):
                states[row] = self._cache[slot] = _advance(states[row], token, position)
                if position == len(own):
                    own.append(states[row])
                assert own[position] == states[row], "a token is not the one that was there"
            last = self._slot(plan, row, contexts[row] + new - 1)
            assert self._cache[last] == states[row], "slots are not the table's"
        return states

    def _before(self, plan: StepPlan, row: int, context: int) -> bytes:
        if context == 0:
            return _START
        state = self._cache[self._slot(plan, row, context - 1)]
        assert state is not None, "the row reads a slot that nobody wrote"
        return state

    def _slot(self, plan: StepPlan, row: int, position: int) -> int:
        block = int(plan.tables[plan.seats[row], position // self._block_size])
        return block * self._block_size + position % self._block_size

    def _seat(self, plan: StepPlan) -> None:
        """Compute, by itself, what each row that got a seat must have in its cache."""
        for seated in plan.seated:
            state, states = _START, []
            for position, token in enumerate(seated.tokens.tolist()):
                state = _advance(state, token, position)
                states.append(state)
            self._states[seated.seat] = states

    def _check_contexts(self, plan: StepPlan) -> None:
        """All that a row reads, found, copied in or computed, is its own."""
        size = self._block_size
        for seat, context in zip(plan.seats.tolist(), plan.num_context.tolist(), strict=True):
            states = self._states[seat]
            used = plan.tables[seat, : -(-context // size)]
            for index, block in enumerate(used.tolist()):
                own = states[index * size : min((index + 1) * size, context)]
                held = self._cache[block * size : block * size + len(own)]
                assert held == own, "a row reads what is not its own"

    def _check(self, plan: StepPlan) -> None:
        for seated in plan.seated:
            self._request_at[seated.seat] = seated.request
            assert 1 <= seated.prompt_tokens <= len(seated.tokens)
        seated_there = [self._request_at[seat] for seat in plan.sample_seats.tolist()]
        assert seated_there == plan.sample_requests.tolist(), (
            "a choice samples on a seat where another request was seated"
        )
        samples = plan.samples.tolist()
        assert samples == sorted(samples), "samples are not in the order of rows"
        assert (plan.num_new > 0).all(), "a row is planned without a token"
