"""Lives of a scheduler with everything in them, and what must hold in each.

A `Life` is one scheduler, its clients, and the answers that they have to get. What happens is up
to the caller: `RandomLife` rules it from a seed, `test_hypothesis` by a search. After every step
all invariants are recounted (`Driver`), every record must fit the history of its request
(`Histories`), and every token is compared with what the request would get alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cadenza.policies import CachedBlocks, RequestColumns, StepBudget, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.decisions import Decisions
from cadenza.policies.profile import OBSERVER, Profile
from cadenza.scheduler.report import StepReport
from cadenza.scheduler.request import Refused
from cadenza.scheduler.states import FinishReason
from cadenza.testing import Driver, oracle
from tests.scheduler.histories import Histories
from tests.scheduler.witness import Witness

NEVER = float("inf")
PATIENCE = 400  # steps in which a life must end once nothing arrives and everybody has credit


class Impatient:
    """A guard that marks whoever was overtaken twice, so that small cases starve."""

    name = "impatient"

    @hookimpl
    def guard_starvation(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
        return waiting.overtakes >= 2


class Narrow:
    """A budget that is now and then too small for those who run, and chunks smaller than blocks."""

    name = "narrow"

    @hookimpl
    def plan_budget(
        self, running: RequestColumns, waiting: RequestColumns, step: StepView
    ) -> StepBudget:
        return StepBudget(1 + step.step_id % 11, 1 + step.step_id % 5)


class Scrambled:
    """Evicts in an order without any sense, heads of prefixes before their tails too."""

    name = "scrambled"

    @hookimpl
    def rank_cached_blocks(self, blocks: CachedBlocks, step: StepView) -> np.ndarray:
        return (blocks.block * 7 + step.step_id) % 5


CHOICES: dict[str, list[str]] = {
    "order_admissions": ["fcfs", "priority", "srpt-limited"],
    "reserve_blocks": ["none", "none", "no-evict", "new-token-ratio", "past-future"],
    "select_victims": ["newest", "lowest-priority"],
    "choose_preemption": ["recompute", "swap", "cost-model"],
    "allow_displacement": ["nobody", "strict-priority"],
    "guard_starvation": ["bounded-overtake", Impatient.name],
    "rank_cached_blocks": ["oldest-block", "leaves-first", Scrambled.name],
    "predict_lengths": ["no-prediction", "observed-lengths"],
    "plan_budget": ["calibrated", "calibrated", "tpot-target", Narrow.name],
}


def profile_of(names: dict[str, str]) -> Profile:
    """These policies, and a witness."""
    own = {policy.name: policy for policy in (Impatient, Narrow, Scrambled, Witness)}
    return Profile({**names, OBSERVER: Witness.name}, {**BUILTIN, **own})


@dataclass
class Stream:
    """A client: its choices, and how it takes tokens."""

    requests: range
    window: int | None  # tokens it takes at a time; None: all
    unread: int = 0  # tokens received since the last grant

    def receive(self) -> None:
        self.unread += 1
        assert self.window is None or self.unread <= self.window, "more than the reader takes"

    @property
    def wants_to_grant(self) -> bool:
        """Clients grant when half the window is used."""
        return self.window is not None and 2 * self.unread >= self.window


@dataclass
class Answer:
    """What a choice gets alone, and whether it may get less."""

    tokens: list[int]
    end: FinishReason
    may_end_early: bool = False  # dropped, stopped, failed, or with a deadline
    deadline_s: float = NEVER


@dataclass
class Life:
    """A scheduler among its clients. Every act takes effect at once or in the next step."""

    driver: Driver
    name: str = ""  # what to call it when it goes wrong
    answers: dict[int, Answer] = field(default_factory=dict)
    streams: dict[int, Stream] = field(default_factory=dict)  # by choice, while not ended
    histories: Histories = field(default_factory=Histories)
    next_request: int = 0
    forced: bool = False  # a preemption, which the scheduler does not count as work

    @property
    def unfinished(self) -> list[int]:
        """Choices that have not ended, as far as clients know."""
        return list(self.streams)

    def arrive(self, prompt: list[int], max_tokens: int, n: int = 1, **fields: Any) -> bool:
        """One request, of one choice or several; returns whether it was taken."""
        config = self.driver.scheduler.config
        request = self.next_request
        self.next_request += n
        emitted = fields.get("emitted", ())
        fields["emitted"] = np.array(emitted, dtype=np.int32)
        fits = len(prompt) + len(emitted) < config.max_model_len
        try:
            self.driver.add(request, prompt, max_tokens, n=n, **fields)
        except Refused:
            assert n > config.max_num_seqs or not fits or len(emitted) >= max_tokens, self.name
            return False
        stream = Stream(range(request, request + n), fields.get("credit"))
        most = min(max_tokens, config.max_model_len - len(prompt)) - len(emitted)
        for choice in range(n):
            answer = self._alone([*prompt, *emitted], most, choice, fields)
            answer.deadline_s = fields.get("deadline_s", NEVER)
            answer.may_end_early = answer.deadline_s < NEVER
            self.answers[request + choice] = answer
            self.streams[request + choice] = stream
        return True

    def _alone(self, prompt: list[int], most: int, choice: int, fields: dict[str, Any]) -> Answer:
        eos = self.driver.scheduler.config.eos_token_ids
        if fields.get("ignore_eos", False):
            eos = frozenset()
        tokens = oracle(prompt, most, choice)
        stops = fields.get("stop_token_ids", frozenset())
        for index, token in enumerate(tokens):
            if token in eos or token in stops:
                end = FinishReason.EOS if token in eos else FinishReason.STOP_TOKEN
                return Answer(tokens[: index + 1], end)
        return Answer(tokens, FinishReason.LENGTH)

    def leave(self, request: int, *, stopped: bool = False) -> None:
        """The client of a choice is gone, or has found a stop string. Anybody's, even nobody's."""
        scheduler = self.driver.scheduler
        (scheduler.finish if stopped else scheduler.drop)(request)
        self._may_end_early(request)
        self.streams.pop(request, None)

    def fail(self, request: int) -> None:
        """The choice's logits are not finite from now on."""
        if request in self.answers:
            self.driver.runner.fail.add(request)
            self._may_end_early(request)

    def preempt(self, request: int, *, swap: bool) -> None:
        """The row of the choice loses its seat in the next step, if it has one."""
        self.driver.scheduler.preempt(request, swap=swap)
        self.forced = True

    def use(self, names: dict[str, str]) -> None:
        """These policies take over."""
        self.driver.scheduler.use(Decisions(profile_of(names)))

    def set_deadline(self, request: int, deadline_s: float) -> None:
        """For the choice, and for all of its request as long as none has a token."""
        if request in self.answers and request not in self.streams:
            return  # it may be about to leave a row in which others stay
        self.driver.scheduler.set_deadline(request, deadline_s)
        if request not in self.streams:
            return
        together = self.streams[request].requests
        begun = any(choice in self.driver.tokens for choice in together)
        for choice in [request] if begun else together:
            self._may_end_early(choice)
            self.answers[choice].deadline_s = deadline_s

    def grant(self, request: int) -> None:
        """The reader of a choice takes what it received once more."""
        stream = self.streams.get(request)
        if stream is not None and stream.window is not None and stream.unread:
            self.driver.scheduler.grant(request, stream.unread)
            stream.unread = 0

    def _may_end_early(self, request: int) -> None:
        if request in self.answers:
            self.answers[request].may_end_early = True

    def step(self) -> StepReport:
        """One step, and what must be true of it."""
        driver, scheduler = self.driver, self.driver.scheduler
        had_work, self.forced = scheduler.has_work or self.forced, False
        report = driver.step()
        assert had_work or driver.plan is None, f"{self.name}: a plan out of nothing"
        self.histories.extend(report, driver.plan)
        for request, token, code in zip(
            report.requests.tolist(), report.tokens.tolist(), report.finished.tolist(), strict=True
        ):
            if request in self.streams:
                self._receive(request, token, FinishReason(code))
        for request in self.streams:
            late = self.answers[request].deadline_s <= driver.now_s
            assert not late, f"{self.name}: request {request} outlives its deadline"
        return report

    def _receive(self, request: int, token: int, end: FinishReason) -> None:
        if token >= 0:
            self.streams[request].receive()
        if end is FinishReason.DEADLINE:
            assert self.answers[request].deadline_s <= self.driver.now_s
        if end is not FinishReason.NOT:
            del self.streams[request]

    def settle(self) -> None:
        """Everybody gets credit; a bounded number of steps sees all to their end."""
        scheduler = self.driver.scheduler
        for request, stream in self.streams.items():
            scheduler.grant(request, 1000)
            stream.window = None
        left = sum(
            len(self.answers[request].tokens) - len(self.driver.tokens.get(request, ()))
            for request in self.unfinished
        )
        for _ in range(PATIENCE + 20 * left):
            if not scheduler.has_unfinished:
                break
            self.step()
        assert not scheduler.has_unfinished, f"{self.name} does not come to an end"
        self.step()  # what was read from the host in the last one is free after it
        self.check()

    def check(self) -> None:
        """Every choice got its own tokens, whole unless it was cut, and ended once."""
        driver = self.driver
        for request, answer in self.answers.items():
            where = f"{self.name}, request {request}"
            tokens = driver.tokens.get(request, [])
            if answer.may_end_early:
                assert tokens == answer.tokens[: len(tokens)], where
            else:
                assert tokens == answer.tokens, where
                assert driver.ends[request] is answer.end, where
        self.histories.check_ended()
        self._check_statistics()

    def _check_statistics(self) -> None:
        figures, seen = self.driver.scheduler.statistics(), self.histories.seen
        assert figures.free_blocks + figures.cached_blocks == figures.total_blocks
        assert figures.free_host_blocks == figures.total_host_blocks
        assert figures.running == figures.waiting == figures.parked == figures.swapped == 0
        assert figures.preemptions == seen["swapped"] + seen["dropped"]
        assert figures.swaps == seen["swapped"]
        assert figures.computed_tokens == seen["tokens computed"]
        assert figures.generated_tokens == seen["tokens generated"]
        assert figures.decisions_lost == figures.policy_faults == 0
