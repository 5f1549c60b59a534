"""An engine without a model: it speaks the wire's messages, under a test's control."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from msgspec.structs import replace

from cadenza.wire.arrays import pack_ids, view_ids
from cadenza.wire.codec import FrameReader, encode
from cadenza.wire.messages import (
    Cancel,
    Counters,
    Credit,
    Decision,
    DescribePolicies,
    Failed,
    FaultCount,
    Finish,
    Finished,
    HookUse,
    PoliciesAnswer,
    PoliciesState,
    PolicyConfig,
    PromptScores,
    Ready,
    ReleasePolicy,
    ResetPrefixCache,
    Resubmit,
    RowLogprobs,
    SetDeadline,
    Shutdown,
    Stall,
    Start,
    Step,
    Submit,
    ToEngine,
    ToFront,
    UseProfile,
    UseShadow,
)
from cadenza.wire.policies import Comparison, HookFaults, ProfileState, ShadowState

Reply = Callable[[Submit], Sequence[int]]

COMPARISON = Comparison(
    hook="order_admissions",
    asked=8,
    unanswered=1,
    differed=3,
    first_differed=2,
    mean=0.25,
    figure="mean change of place, 1 is reversed",
)


@dataclass(slots=True, eq=False)
class Credits:
    """Tokens that the rows of one submit may have yet, together; None: any number."""

    left: int | None

    def take(self) -> bool:
        if self.left is not None:
            if not self.left:
                return False
            self.left -= 1
        return True

    def grant(self, tokens: int) -> None:
        if self.left is not None:
            self.left += tokens


@dataclass(slots=True, eq=False)
class FakeRow:
    submit: Submit  # as if it had come alone
    reply: Sequence[int]
    deadline_s: float | None
    emitted: list[int] = field(default_factory=list)
    credit: Credits = field(default_factory=lambda: Credits(None))
    is_parked: bool = False
    is_stalled: bool = False

    @property
    def is_late(self) -> bool:
        return self.deadline_s is not None and time.monotonic() >= self.deadline_s


class FakeEngine(asyncio.Protocol):
    """Answers each row with `reply(submit)` and then EOS, one token a row and step.

    A row whose deadline has passed ends without a token in the next step. `auto` steps by itself
    while rows run; otherwise `step` does. At most `seats` rows run.
    """

    def __init__(
        self, reply: Reply, *, vocab_size: int, eos: int, max_model_len: int = 256
    ) -> None:
        self.reply = reply
        self.auto = True
        self.seats = 64
        self.vocab_size = vocab_size
        self.eos = eos
        self.max_model_len = max_model_len
        self.received: list[ToEngine] = []
        self.running: dict[int, FakeRow] = {}
        self.waiting: dict[int, FakeRow] = {}
        self.credits: dict[int, Credits] = {}  # by the requests that they were submitted with
        self.generated = 0
        self.preempted: list[int] = []  # to be reported by the next step
        self.admitted_again: list[int] = []  # likewise
        self.cached_tokens = 3
        self.told_counters: dict[str, int] = {}  # in place of its own
        self.told_policy_faults: tuple[FaultCount, ...] = ()
        self.told_hook_uses: tuple[HookUse, ...] = ()
        self.decisions: list[Decision] = []  # to be told by the next step
        self.policies = PolicyConfig()
        self.shadow: PolicyConfig | None = None
        self.hook_faults: tuple[HookFaults, ...] = ()
        self.quarantined: tuple[str, ...] = ()
        self.policy_error: str | None = None  # what changes of policies are answered with
        self.answers_changes = True
        self.answers_questions = True
        self._changed = asyncio.Event()
        self._reader: FrameReader[ToEngine] = FrameReader(ToEngine)  # type: ignore[arg-type]
        self._transport: asyncio.WriteTransport | None = None
        self._next_step: asyncio.Handle | None = None

    async def attach(self, end: socket.socket) -> None:
        end.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=end)

    def send(self, message: ToFront) -> None:
        assert self._transport is not None
        self._transport.write(encode(message))

    def become_ready(self) -> None:
        self.send(
            Ready(
                max_model_len=self.max_model_len,
                vocab_size=self.vocab_size,
                eos_token_ids=(self.eos,),
                num_blocks=64,
                num_host_blocks=32,
                block_size=16,
                max_num_seqs=self.seats,
                max_num_batched_tokens=256,
                device="cpu",
                dtype="float32",
                load_s=0.1,
            )
        )

    def fail(self, message: str, request: int | None = None) -> None:
        self.running.pop(request or 0, None)
        self.waiting.pop(request or 0, None)
        self.send(Failed(message, request))

    def die(self) -> None:
        self.running.clear()
        self.waiting.clear()
        if self._transport is not None:
            self._transport.abort()

    def submits(self) -> list[Submit]:
        return [message for message in self.received if isinstance(message, Submit)]

    def resubmits(self) -> list[Resubmit]:
        return [message for message in self.received if isinstance(message, Resubmit)]

    def expire(self, *requests: int) -> None:
        """Let the deadlines of these rows pass now."""
        for rows in (self.running, self.waiting):
            for request in requests:
                if request in rows:
                    rows[request].deadline_s = 0.0

    def cancels(self) -> list[int]:
        return [message.request for message in self.received if isinstance(message, Cancel)]

    def finishes(self) -> list[Finish]:
        return [message for message in self.received if isinstance(message, Finish)]

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait for a message after which `condition` holds."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self._step_once()

    def _step_once(self) -> None:
        admitted = [*self._admit(), *self.admitted_again]
        for request in self.preempted:
            self.decide("preempted", request, swapped=False)
        late = self._expire()
        rows = [*late, *self._funded()]
        scores = self._score()
        columns = [(-1, Finished.DEADLINE)] * len(late)
        columns += [self._advance(row) for row in rows[len(late) :]]
        self.send(
            Step(
                step_id=0,
                requests=_int64([row.submit.request for row in rows]),
                tokens=pack_ids([token for token, _ in columns]),
                finished=bytes(end for _, end in columns),
                logprobs=tuple(
                    _logprobs(index, row)
                    for index, row in enumerate(rows)
                    if _wants(row) and row not in late
                ),
                prompt_scores=scores,
                admitted=_int64(admitted),
                admitted_cached=pack_ids([self.cached_tokens] * len(admitted)),
                preempted=_int64(self.preempted),
                decisions=self._drain_decisions(),
                counters=self.counters(),
                policy_faults=self.told_policy_faults,
                hook_uses=self.told_hook_uses,
            )
        )
        self.preempted, self.admitted_again = [], []

    def _funded(self) -> list[FakeRow]:
        """Running rows that have a token of credit, which is taken; the others are parked."""
        funded = []
        for row in self.running.values():
            has = not row.is_stalled and row.credit.take()
            if has:
                funded.append(row)
            if row.is_parked is has:
                row.is_parked = not has
                self.decide("unparked" if has else "parked", row.submit.request)
        return funded

    def _score(self) -> tuple[PromptScores, ...]:
        """All prompts that want it, before their first tokens, in two parts."""
        scores: list[PromptScores] = []
        for row in self.running.values():
            top, num = row.submit.sampling.prompt_logprobs, len(row.submit.prompt) // 4
            if top is None or row.emitted:
                continue
            half = (num + 1) // 2
            scores += [
                _prompt_scores(row.submit.request, first, last, top)
                for first, last in ((1, half), (half, num))
                if 0 < first < last
            ]
        return tuple(scores)

    def decide(self, kind: str, request: int, **facts: bool | int | float | str) -> None:
        self.decisions.append(Decision(kind, request, 0, time.monotonic(), facts))

    def tell_decisions(self) -> None:
        """In a frame of their own."""
        self.send(Step(step_id=0, decisions=self._drain_decisions(), counters=self.counters()))

    def tell_admissions(self) -> None:
        """Seat those who wait, and tell of that before the pass which they are seated for."""
        admitted = self._admit()
        cached = pack_ids([self.cached_tokens] * len(admitted))
        self.send(
            Step(
                step_id=0,
                admitted=_int64(admitted),
                admitted_cached=cached,
                decisions=self._drain_decisions(),
                counters=self.counters(),
            )
        )

    def _drain_decisions(self) -> tuple[Decision, ...]:
        told, self.decisions = self.decisions, []
        return tuple(told)

    def counters(self) -> Counters:
        known = Counters(
            received=sum(not isinstance(message, Start | Shutdown) for message in self.received),
            running=len(self.running),
            waiting=len(self.waiting),
            at_rest=not (self.running or self.waiting),
            free_blocks=64 - len(self.running),
            total_blocks=64,
            generated_tokens=self.generated,
            prefix_queries=10,
            prefix_hits=4,
        )
        return replace(known, **self.told_counters)

    def _admit(self) -> list[int]:
        admitted = list(self.waiting)[: max(0, self.seats - self._num_seated())]
        for request in admitted:
            self.running[request] = self.waiting.pop(request)
            self.decide("admitted", request, cached_tokens=self.cached_tokens)
        return admitted

    def _expire(self) -> list[FakeRow]:
        late = [
            row for rows in (self.running, self.waiting) for row in rows.values() if row.is_late
        ]
        for row in late:
            self.running.pop(row.submit.request, None)
            self.waiting.pop(row.submit.request, None)
            self.decide("finished", row.submit.request, reason="deadline")
        return late

    def _advance(self, row: FakeRow) -> tuple[int, Finished]:
        position = len(row.emitted)
        token = row.reply[position] if position < len(row.reply) else self.eos
        row.emitted.append(token)
        self.generated += 1
        end = self._end(row, token)
        if end:
            del self.running[row.submit.request]
            self.decide("finished", row.submit.request, reason=end.name.lower())
        return token, end

    def _end(self, row: FakeRow, token: int) -> Finished:
        if token == self.eos and not row.submit.ignore_eos:
            return Finished.EOS
        if token in row.submit.stop_token_ids:
            return Finished.STOP_TOKEN
        if len(row.emitted) >= row.submit.max_tokens:
            return Finished.LENGTH
        return Finished.NOT

    def _auto_step(self) -> None:
        self._next_step = None
        if self.auto and self._may_step() and self._transport is not None:
            self._step_once()
            self._plan_step()

    def _may_step(self) -> bool:
        """Whether anything can go on: all that run being parked, nothing does before a grant."""
        running = self.running.values()
        may_admit = self.waiting and self._num_seated() < self.seats
        return bool(may_admit) or not all(
            row.is_stalled or (row.is_parked and row.credit.left == 0) for row in running
        )

    def _num_seated(self) -> int:
        """Parked rows leave their seats to those who wait."""
        return sum(not row.is_parked for row in self.running.values())

    def _plan_step(self) -> None:
        if self.auto and self._next_step is None:
            self._next_step = asyncio.get_running_loop().call_soon(self._auto_step)

    def resume(self) -> None:
        self.auto = True
        self._plan_step()

    def answer_change(self, message: UseProfile | UseShadow | ReleasePolicy) -> None:
        """Do it, unless `policy_error` says why not."""
        if self.policy_error is None:
            match message:
                case UseProfile(_, config):
                    self.policies = config
                case UseShadow(_, config):
                    self.shadow = config
                case ReleasePolicy(_, policy):
                    self.quarantined = tuple(name for name in self.quarantined if name != policy)
        self.send(PoliciesAnswer(message.number, self.policy_error))

    def _take(self, rows: Sequence[Submit]) -> None:
        """Rows that share the first one's credit."""
        credit = Credits(rows[0].credit)
        for row in rows:
            self.credits[row.request] = credit
            emitted = view_ids(row.emitted).tolist()
            taken = FakeRow(row, self.reply(row), row.deadline_s, emitted, credit)
            self.waiting[row.request] = taken
            self.decide("arrived", row.request, prompt_tokens=len(row.prompt) // 4)
        self._plan_step()

    def _policies_state(self, number: int) -> PoliciesState:
        live = ProfileState(
            decisions=self.policies.chosen,
            options=self.policies.options,
            faults=self.hook_faults,
            quarantined=self.quarantined,
        )
        if self.shadow is None:
            return PoliciesState(number, live)
        profile = ProfileState(
            decisions=self.shadow.chosen, options=self.shadow.options, faults=(), quarantined=()
        )
        return PoliciesState(number, live, ShadowState(profile, (COMPARISON,)))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            self.received.append(message)
            match message:
                case Submit():
                    self._take([*_rows(message)])
                case Resubmit(rows):
                    self._take(rows)
                case Cancel(request) | Finish(request, _):
                    self.running.pop(request, None)
                    self.waiting.pop(request, None)
                    reason = "aborted" if isinstance(message, Cancel) else "stopped"
                    self.decide("finished", request, reason=reason)
                    self.tell_decisions()
                case Credit(request, tokens):
                    self.credits[request].grant(tokens)
                    self._plan_step()
                case Stall(request, is_stalled):
                    for rows in (self.running, self.waiting):
                        if request in rows:
                            rows[request].is_stalled = is_stalled
                    self._plan_step()
                case SetDeadline(request, deadline_s):
                    for rows in (self.running, self.waiting):
                        if request in rows:
                            rows[request].deadline_s = deadline_s
                case ResetPrefixCache() if self.answers_questions:
                    self.send(Step(step_id=0, counters=self.counters()))
                case UseProfile() | UseShadow() | ReleasePolicy():
                    if self.answers_changes:
                        self.answer_change(message)
                case DescribePolicies(number) if self.answers_questions:
                    self.send(self._policies_state(number))
                case Shutdown():
                    self.die()
        self._changed.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._changed.set()


def echo_numbers(submit: Submit) -> list[int]:
    """A deterministic reply of 12 printable byte tokens, from the prompt and the choice."""
    start = sum(view_ids(submit.prompt).tolist()) + submit.choice
    return [(start + 7 * i) % 90 for i in range(12)]


def _rows(submit: Submit) -> Iterator[Submit]:
    """One submit for each row."""
    for row in range(submit.n):
        yield replace(submit, request=submit.request + row, choice=submit.choice + row, n=1)


def _wants(row: FakeRow) -> bool:
    return row.submit.sampling.logprobs is not None


def _logprobs(index: int, row: FakeRow) -> RowLogprobs:
    count = row.submit.sampling.logprobs or 0
    best = np.array([-0.25, *[-np.inf] * (count - 1)][:count], dtype="<f4")
    return RowLogprobs(index, -0.5, pack_ids(range(count)), best.tobytes())


def _prompt_scores(request: int, first: int, last: int, top: int) -> PromptScores:
    """The token at `i` of a prompt has -i and the rank i, the best are tokens 0, 1, 2, ..."""
    places = range(first, last)
    return PromptScores(
        request=request,
        first=first,
        logprobs=np.array([-i for i in places], dtype="<f4").tobytes(),
        ranks=pack_ids(places),
        top_ids=pack_ids(list(range(top)) * len(places)),
        top_logprobs=np.array([-0.5] * top * len(places), dtype="<f4").tobytes(),
    )


def _int64(values: Sequence[int]) -> bytes:
    return np.array(values, dtype="<i8").tobytes()
