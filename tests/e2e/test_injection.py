"""Disturbances at chosen steps of the real model: no choice gets another token for them.

Each run has several requests in one batch, and each is disturbed after another of its passes: amid
its prompt, just before and after its choices part, and while it decodes. Every choice must get what
it gets undisturbed, down to the bits of its logits. What a plan leaves free is filled with NaN, so
that nothing can be right only because old keys and values still lay where they had been.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from cadenza.policies import StepBudget, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.profile import Profile
from cadenza.scheduler.decisions import (
    Arrived,
    Cause,
    Finished,
    HostCopyDropped,
    Parked,
    Preempted,
    Resumed,
    Unparked,
)
from cadenza.scheduler.plan import Copies, Runner, StepOutcome, StepPlan
from cadenza.scheduler.scheduler import Scheduler
from cadenza.scheduler.states import FinishReason
from cadenza.testing.fake_runner import SteppedRunner
from cadenza.wire.arrays import pack_ids
from cadenza.wire.messages import Sampling
from tests.e2e.conftest import GREEDY, DemoModel, load_demo

BLOCK_SIZE = 4  # small, so that short texts step over many edges
NUM_TOKENS = 6  # that each choice gets
SEATS = 13
CREDIT = 1000  # more than any request needs
PREFIX = 2 * BLOCK_SIZE  # tokens that a warm case finds
STEPS_AWAY = 3
CHUNK = 4  # tokens of a prompt in one pass, where it takes several
OVER_COMMIT = {"reserve_blocks": "none", "choose_preemption": "swap"}


class InChunks:
    @hookimpl
    def plan_budget(self, step: StepView) -> StepBudget:
        return StepBudget(step.token_budget, prefill_chunk=CHUNK)


def profile_of(*, is_chunked: bool) -> Profile:
    chosen = {**OVER_COMMIT, **({"plan_budget": "in-chunks"} if is_chunked else {})}
    return Profile(chosen, {**BUILTIN, "in-chunks": InChunks})


@dataclass(frozen=True, kw_only=True)
class Case:
    """One request, and how it meets the scheduler."""

    sampling: Sampling
    n: int = 1
    prompt_tokens: int = 9
    is_chunked: bool = False  # several passes for the prompt
    is_cached: bool = False  # full blocks are published
    is_warm: bool = False  # somebody has published its prefix, which all warm requests share

    @property
    def prompt(self) -> list[int]:
        """It repeats itself, so that penalties have something to say."""
        words = np.random.default_rng(1).integers(100, 40_000, 3).tolist()
        return (words * self.prompt_tokens)[: self.prompt_tokens]


ALL_PENALTIES = Sampling(
    temperature=0.8,
    top_k=200,
    seed=12,
    presence_penalty=0.4,
    frequency_penalty=0.6,
    repetition_penalty=1.2,
)
SEEDED = Sampling(temperature=0.9, top_p=0.95, min_p=0.001, seed=11)

# Few tokens are allowed, so that the bad words matter at every one
FEW: dict[str, Any] = {"allowed_ids": pack_ids([500, 600, 700, 800])}
NO_REPEATS = ((500, 500), (600, 600), (700, 700), (800, 800), (500, 600, 500), (700, 600, 700))
FAVOURED = np.array([100.0], dtype="<f4").tobytes()
BIASED: dict[str, Any] = {
    "bias_ids": pack_ids(range(1000, 1008)),
    "biases": np.full(8, 12.0, dtype="<f4").tobytes(),
}
CONSTRAINED = Sampling(
    temperature=3.0,
    seed=14,
    repetition_penalty=1.1,
    bad_words=NO_REPEATS,
    bias_ids=pack_ids([600]),
    biases=np.array([2.0], dtype="<f4").tobytes(),
    min_tokens=3,
    ending_ids=(800,),
    **FEW,
)

CASES = {
    "greedy": Case(sampling=GREEDY),
    "seeded": Case(sampling=SEEDED),
    "presence": Case(sampling=Sampling(temperature=0.0, presence_penalty=1.8)),
    "frequency": Case(sampling=Sampling(temperature=0.9, frequency_penalty=1.8, seed=13)),
    "repetition": Case(sampling=Sampling(temperature=0.0, repetition_penalty=1.5)),
    "penalties": Case(sampling=ALL_PENALTIES),
    "chunked": Case(sampling=ALL_PENALTIES, prompt_tokens=22, is_chunked=True),
    "warm": Case(sampling=ALL_PENALTIES, is_cached=True, is_warm=True),
    "forked": Case(sampling=SEEDED, n=3, prompt_tokens=10, is_chunked=True),
    "forked-at-an-edge": Case(sampling=ALL_PENALTIES, n=3, prompt_tokens=8, is_chunked=True),
    "forked-cached": Case(
        sampling=ALL_PENALTIES, n=3, prompt_tokens=10, is_chunked=True, is_cached=True
    ),
    "forked-warm": Case(sampling=SEEDED, n=3, prompt_tokens=10, is_cached=True, is_warm=True),
    "biased": Case(sampling=Sampling(temperature=0.9, seed=15, **BIASED)),
    "worded": Case(sampling=Sampling(temperature=5.0, seed=16, bad_words=NO_REPEATS, **FEW)),
    "minimum": Case(
        sampling=Sampling(
            temperature=0.0,
            bias_ids=pack_ids([900]),
            biases=FAVOURED,
            min_tokens=4,
            ending_ids=(900,),
        )
    ),
    "constrained": Case(sampling=CONSTRAINED, prompt_tokens=22, is_chunked=True),
    "forked-constrained": Case(sampling=CONSTRAINED, n=3, prompt_tokens=10, is_chunked=True),
}
# One batch each. Who stands first is disturbed after the first pass, the next after the second.
SETTINGS: dict[str, list[Case]] = {
    name: [CASES[case] for case in cases.split()]
    for name, cases in {
        "samplers": "greedy seeded presence frequency repetition",
        "forked": "forked chunked forked-at-an-edge forked chunked",
        "cached": "forked-cached warm forked-cached forked-warm",
        "constraints": "forked-constrained minimum constrained worded forked-constrained",
    }.items()
}


# Some of each kind, for a small pool
CROWD = [
    CASES[name]
    for name in ("seeded", "forked", "penalties", "chunked", "forked-at-an-edge", "greedy")
]


class Choice(NamedTuple):
    """All that a choice gets, and what it is billed."""

    tokens: list[int]
    digests: list[bytes]  # of the logits of each
    end: FinishReason
    prompt_tokens: int
    generated_tokens: int


class Poisoner(SteppedRunner):
    """Runs plans, then fills with NaN what no later plan may read before it writes."""

    def __init__(self, runner: Runner, demo: DemoModel, scheduler: Scheduler) -> None:
        self._runner, self._demo = runner, demo
        self._pool = scheduler._stores.pool
        self._blocks = demo.runner.cache.blocks
        self._nan_block = demo.facts.num_blocks - 1
        self._blocks[: self._pool.num_blocks] = torch.nan
        self._blocks[self._nan_block] = torch.nan
        self._poisoned = set(range(self._pool.num_blocks))
        # By copy and place in its prompt: what was told of the token there, as bytes
        self.scores: dict[int, dict[int, tuple[bytes, ...]]] = {}

    def execute(self, plan: StepPlan) -> StepOutcome:
        outcome = self._runner.launch(plan)()
        for request, first, *arrays in outcome.prompt_scores:
            known = self.scores.setdefault(request // 10, {})
            for place, told in enumerate(zip(*arrays, strict=True), start=first):
                score = tuple(value.tobytes() for value in told)
                assert known.setdefault(place, score) == score, "two scores of one token"
        unheld, published = self._pool.references == 0, self._pool.index.names != 0
        free = set(np.flatnonzero(unheld & ~published).tolist())
        for block in free - self._poisoned:
            self._blocks[block] = torch.nan
        self._poisoned = free
        self._poison_host([host for host, _ in plan.copies.swap_in.tolist()])
        return outcome

    def _poison_host(self, blocks: list[int]) -> None:
        """What was swapped in lies on the host no more."""
        nothing = np.empty((0, 2), dtype=np.int32)
        pairs = [(self._nan_block, block) for block in blocks]
        swap_out = np.array(pairs, dtype=np.int32).reshape(-1, 2)
        self._demo.runner.copier.run(Copies(swap_out, nothing, nothing))
        self._demo.runner.copier.finish()


class Play:
    """Requests in one batch; number i is disturbed after its pass i + 1."""

    def __init__(self, demo: DemoModel, cases: Sequence[Case], **limits: Any) -> None:
        """All arrive at once, after one that leaves a prefix where a case is warm."""
        is_chunked = (
            any(case.is_chunked for case in cases) and "max_num_batched_tokens" not in limits
        )
        usual = {
            "num_blocks": 160,
            "num_host_blocks": 160,
            "max_model_len": 64,
            "max_num_seqs": SEATS,
            "max_num_batched_tokens": SEATS + BLOCK_SIZE if is_chunked else 512,
            "enable_prefix_caching": any(case.is_cached for case in cases),
        }
        self._demo = demo
        profile = profile_of(is_chunked=is_chunked)
        self.driver, self._recorder = demo.drive(profile, **{**usual, **limits})
        self.poisoner = Poisoner(self._recorder, demo, self.driver.scheduler)
        self.driver.runner = self.poisoner
        self.requests: list[range] = []  # of each copy, one a choice
        self.cases: list[Case] = []
        self.passes: list[int] = []
        self.drawn: dict[int, int] = {}  # by number: tokens that it had when it was disturbed
        self._granted: dict[range, int] = {}
        self._later: list[tuple[int, Callable[[], None]]] = []
        self._num_steps = 0
        if any(case.is_warm for case in cases):
            self._warm_up()
        for case in cases:
            self.arrive(case)

    def arrive(self, case: Case, like: range | None = None) -> None:
        """One more request; finds what an earlier one `like` it has left."""
        first = 10 * len(self.requests)
        requests = range(first, first + case.n)
        for choice, request in enumerate(requests):
            self._demo.settings[request] = case.sampling, choice
        self.driver.add(
            first,
            case.prompt,
            NUM_TOKENS,
            n=case.n,
            credit=CREDIT,
            cache_salt="" if case.is_warm else str((like or requests)[0]),
        )
        self.requests.append(requests)
        self.cases.append(case)
        self.passes.append(0)
        self._granted[requests] = CREDIT

    def run(self, disturb: Callable[[Play, range], None] | None = None) -> Play:
        """Step until nothing is left, and see that everything came back."""
        undisturbed = set(range(len(self.requests))) if disturb else set()
        while self.driver.scheduler.has_unfinished:
            due = [act for step, act in self._later if step == self._num_steps]
            for act in due:
                act()
            for index in sorted(undisturbed):
                if self.passes[index] == index + 1:
                    undisturbed.remove(index)
                    assert disturb
                    self.drawn[index] = self._drawn(self.requests[index])
                    disturb(self, self.requests[index])
            self._step()
            assert self._num_steps < 200, "it does not end"
        self.driver.run()
        assert not undisturbed, "somebody ended before it could be disturbed"
        statistics = self.driver.scheduler.statistics()
        assert statistics.free_host_blocks == statistics.total_host_blocks
        return self

    def later(self, steps: int, act: Callable[[], None]) -> None:
        """Do it before the step that comes `steps` after the next one."""
        self._later.append((self._num_steps + steps, act))

    def preempt(self, requests: Sequence[int], *, swap: bool) -> None:
        for request in requests:
            self.driver.scheduler.preempt(request, swap=swap)

    def hold(self, requests: range) -> None:
        """Take the credit away, but for tokens that are drawn already and not yet told."""
        self._grant(requests, self._drawn(requests) - self._granted[requests])

    def release(self, requests: range) -> None:
        self._grant(requests, CREDIT)

    def records(self, request: int, *kinds: type) -> list[Any]:
        """What was decided about a choice, of these kinds."""
        return [
            record
            for record in self.driver.decided
            if record.request == request and isinstance(record, kinds)
        ]

    def choice(self, request: int) -> Choice:
        [arrived], [finished] = self.records(request, Arrived), self.records(request, Finished)
        return Choice(
            tokens=self.driver.tokens[request],
            digests=self._recorder.digests[request],
            end=finished.reason,
            prompt_tokens=arrived.prompt_tokens,
            generated_tokens=finished.generated_tokens,
        )

    def choices(self, index: int) -> list[Choice]:
        return [self.choice(request) for request in self.requests[index]]

    def _drawn(self, requests: range) -> int:
        """Tokens of all choices, those of the last plan included."""
        drawn = sum(len(self.driver.tokens.get(request, ())) for request in requests)
        if self.driver.outcome is None:
            return drawn
        assert self.driver.plan is not None
        return drawn + int(np.isin(self.driver.plan.sample_requests, requests).sum())

    def _grant(self, requests: range, tokens: int) -> None:
        [alive, *_] = [request for request in requests if request not in self.driver.ends]
        self._granted[requests] += tokens
        self.driver.scheduler.grant(alive, tokens)

    def _step(self) -> None:
        self.driver.step()
        self._num_steps += 1
        planned = self.driver.plan.requests.tolist() if self.driver.plan else ()
        for index in {request // 10 for request in planned}:
            self.passes[index] += 1

    def _warm_up(self) -> None:
        """Somebody with the same prefix, and then something else."""
        self.driver.add(9_999, [*CASES["warm"].prompt[:PREFIX], 77, 78], max_tokens=1)
        self.driver.run()


@pytest.fixture(scope="module")
def demo(one_thread: None) -> DemoModel:
    return load_demo("float32", block_size=BLOCK_SIZE)


@pytest.fixture(scope="module")
def reference(demo: DemoModel) -> dict[str, list[Choice]]:
    """What the choices of each case get with whole prompts, cold and undisturbed."""
    limits = {"max_num_seqs": 32, "max_num_batched_tokens": 512, "enable_prefix_caching": False}
    play = Play(demo, list(CASES.values()), **limits).run()
    assert not play.driver.preempted
    return {name: play.choices(index) for index, name in enumerate(CASES)}


def expected(play: Play, reference: dict[str, list[Choice]], request: int) -> Choice:
    index, choice = divmod(request, 10)
    [name] = [name for name, case in CASES.items() if case is play.cases[index]]
    return reference[name][choice]


def assert_undisturbed(
    play: Play, reference: dict[str, list[Choice]], *, but: Collection[int] = ()
) -> None:
    """Every choice, except those numbered `but`, is that of the reference."""
    for request in chain.from_iterable(play.requests):
        if request not in but:
            assert play.choice(request) == expected(play, reference, request), request


def test_the_reference_is_worth_comparing_with(reference: dict[str, list[Choice]]):
    """Every setting makes a difference, every choice is another one, and all end by length."""
    of_short_prompts = [
        tuple(choices[0].tokens)
        for name, choices in reference.items()
        if CASES[name].prompt_tokens == CASES["greedy"].prompt_tokens and not CASES[name].is_warm
    ]
    assert len(set(of_short_prompts)) == len(of_short_prompts) == 9
    for name, choices in reference.items():
        case = CASES[name]
        assert len({tuple(choice.tokens) for choice in choices}) == case.n
        for choice in choices:
            assert len(choice.tokens) == len(choice.digests) == NUM_TOKENS
            assert choice[2:] == (FinishReason.LENGTH, case.prompt_tokens, NUM_TOKENS)


def test_the_constraints_bite(reference: dict[str, list[Choice]]):
    """A bad word would have come, the ending token comes at once when it may, biases win."""
    few = {500, 600, 700, 800}
    constrained = [*reference["constrained"], *reference["forked-constrained"]]
    for choice in [*reference["worded"], *constrained]:
        assert set(choice.tokens) <= few
        assert all(left != right for left, right in pairwise(choice.tokens))
    assert all(800 not in choice.tokens[:3] for choice in constrained)
    [minimum] = reference["minimum"]
    assert [token == 900 for token in minimum.tokens] == [False] * 4 + [True] * 2
    assert set(reference["biased"][0].tokens) & set(range(1000, 1008))


class Disturbance(NamedTuple):
    """What is done to a copy, and what must have come of it for each of its choices."""

    act: Callable[[Play, range], None]
    check: Callable[[Play, int], None]


def swap(play: Play, requests: range) -> None:
    play.preempt(requests, swap=True)


def check_swapped(play: Play, request: int) -> None:
    preempted, resumed = play.records(request, Preempted, Resumed)
    assert (preempted.cause, preempted.swapped) == (Cause.FORCED, True)
    assert resumed.from_host
    assert resumed.cached_tokens > 0


def recompute(play: Play, requests: range) -> None:
    play.preempt(requests, swap=False)


def check_recomputed(play: Play, request: int) -> None:
    preempted, resumed = play.records(request, Preempted, Resumed)
    assert (preempted.cause, preempted.swapped) == (Cause.FORCED, False)
    assert not resumed.from_host
    assert resumed.cached_tokens == 0 or play.cases[request // 10].is_cached


def swap_for_a_while(play: Play, requests: range) -> None:
    """The others run on; it is swapped in when its reader takes tokens again."""
    play.hold(requests)
    play.preempt(requests, swap=True)
    play.later(STEPS_AWAY, lambda: play.release(requests))


def check_swapped_for_a_while(play: Play, request: int) -> None:
    check_swapped(play, request)
    preempted, resumed = play.records(request, Preempted, Resumed)
    assert resumed.step_id == preempted.step_id + STEPS_AWAY


def park(play: Play, requests: range) -> None:
    play.hold(requests)
    play.later(STEPS_AWAY, lambda: play.release(requests))


def check_parked(play: Play, request: int) -> None:
    parked, unparked = play.records(request, Parked, Preempted, Resumed, Unparked)
    assert (type(parked), type(unparked)) == (Parked, Unparked)
    assert unparked.step_id == parked.step_id + STEPS_AWAY


def preempt_while_parked(play: Play, requests: range) -> None:
    """It is parked, then swapped, and then its reader takes tokens again."""
    play.hold(requests)
    play.later(1, lambda: play.preempt(requests, swap=True))
    play.later(STEPS_AWAY, lambda: play.release(requests))


def check_preempted_while_parked(play: Play, request: int) -> None:
    records = play.records(request, Parked, Preempted, Resumed, Unparked)
    assert [type(record) for record in records] == [Parked, Preempted, Resumed]
    assert records[1].swapped
    assert records[2].from_host
    assert records[2].step_id == records[0].step_id + STEPS_AWAY


def again_and_again(play: Play, requests: range, times: int = 5) -> None:
    """In every step from now on, each choice now one way, now the other."""
    for request in requests:
        play.preempt([request], swap=len(play.records(request, Preempted)) % 2 == request % 2)
    if times > 1:
        play.later(1, lambda: again_and_again(play, requests, times - 1))


def check_again_and_again(play: Play, request: int) -> None:
    """At least where it began early; not in a step in which it had to wait for tokens."""
    preempted = play.records(request, Preempted)
    assert len(preempted) >= (2 if request < 10 else 1)
    assert len(play.records(request, Resumed)) == len(preempted)
    if len(preempted) > 2:
        assert {record.swapped for record in preempted} == {True, False}


DISTURBANCES = {
    "swap": Disturbance(swap, check_swapped),
    "recompute": Disturbance(recompute, check_recomputed),
    "swap-for-a-while": Disturbance(swap_for_a_while, check_swapped_for_a_while),
    "park": Disturbance(park, check_parked),
    "preempt-while-parked": Disturbance(preempt_while_parked, check_preempted_while_parked),
    "again-and-again": Disturbance(again_and_again, check_again_and_again),
}


def table() -> Iterator[Any]:
    """Settings, forwards and turned round, by disturbances. What is turned is partly extra."""
    for settings, disturbance, is_turned in product(SETTINGS, DISTURBANCES, (False, True)):
        is_extra = is_turned and (
            settings in ("samplers", "constraints") or disturbance not in ("swap", "recompute")
        )
        name = f"{settings}{'-turned' * is_turned}-{disturbance}"
        yield pytest.param(
            SETTINGS[settings][:: -1 if is_turned else 1],
            *DISTURBANCES[disturbance],
            id=name,
            marks=[pytest.mark.extra] * is_extra,
        )


@pytest.mark.parametrize(("cases", "act", "check"), list(table()))
def test_a_disturbance_changes_no_token(
    demo: DemoModel,
    reference: dict[str, list[Choice]],
    cases: list[Case],
    act: Callable[[Play, range], None],
    check: Callable[[Play, int], None],
):
    play = Play(demo, cases).run(act)

    assert_undisturbed(play, reference)
    for request in chain.from_iterable(play.requests):
        check(play, request)
    drawn = {play.drawn[index] for index, case in enumerate(cases) if case.n == 3}
    assert not drawn or drawn & {0, 3}, "nobody was disturbed just before or after choices part"


SCORED = Sampling(temperature=0.9, seed=17, prompt_logprobs=2)
SCORED_CASES = [
    Case(sampling=SCORED, prompt_tokens=22, is_chunked=True),
    Case(sampling=SCORED, prompt_tokens=22, is_chunked=True, n=3, is_cached=True),
    Case(sampling=SCORED, prompt_tokens=22, is_chunked=True),
    Case(sampling=SCORED, prompt_tokens=22, is_chunked=True, is_cached=True),
    Case(sampling=GREEDY, prompt_tokens=12),
]


@pytest.fixture(scope="module")
def scored(demo: DemoModel) -> Play:
    """Nobody is disturbed."""
    return Play(demo, SCORED_CASES).run()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.extra] * (name not in ("swap", "recompute")))
        for name in DISTURBANCES
    ],
)
def test_a_disturbance_changes_no_score_of_a_prompt(demo: DemoModel, scored: Play, name: str):
    """Whether it comes amid the prompt or later; every token is scored, in chunks or again."""
    play = Play(demo, SCORED_CASES).run(DISTURBANCES[name].act)

    assert play.poisoner.scores == scored.poisoner.scores
    assert sorted(play.poisoner.scores) == [0, 1, 2, 3]
    assert all([*places] == [*range(1, 22)] for places in scored.poisoner.scores.values())
    for index in range(len(SCORED_CASES)):
        assert play.choices(index) == scored.choices(index)


@pytest.mark.parametrize(
    ("cases", "remainder"),
    [(SETTINGS["forked"], 0), (SETTINGS["forked"][::-1], 1)],
    ids=["amid-prompts", "as-choices-part"],
)
def test_requests_that_leave_change_nobody_elses_tokens(
    demo: DemoModel, reference: dict[str, list[Choice]], cases: list[Case], remainder: int
):
    """Every second request is dropped."""
    gone: list[int] = []

    def leave(play: Play, requests: range) -> None:
        if requests[0] // 10 % 2 == remainder:
            gone.extend(requests)
            for request in requests:
                play.driver.scheduler.drop(request)

    play = Play(demo, cases).run(leave)

    assert_undisturbed(play, reference, but=gone)
    assert len(gone) >= 4
    for request in gone:
        [finished] = play.records(request, Finished)
        assert finished.reason is FinishReason.ABORTED
        told = play.driver.tokens.get(request, [])
        assert told == expected(play, reference, request).tokens[: len(told)]


@pytest.mark.parametrize(("settings", "choice"), [("forked", 0), ("cached", 2)])
def test_one_choice_leaves_or_is_preempted_alone(
    demo: DemoModel, reference: dict[str, list[Choice]], settings: str, choice: int
):
    """Its siblings hold the same blocks, and go on. Before they part, all share one row."""
    gone: list[int] = []

    def disturb(play: Play, requests: range) -> None:
        if len(requests) == 3:
            play.preempt([requests[choice]], swap=len(gone) % 2 == 0)
            if requests[0]:
                gone.append(requests[1])
                play.driver.scheduler.drop(requests[1])

    play = Play(demo, SETTINGS[settings]).run(disturb)

    assert_undisturbed(play, reference, but=gone)
    assert len(gone) == 2
    for index, requests in enumerate(play.requests):
        if len(requests) == 3:
            preempted = [request for request in requests if play.records(request, Preempted)]
            assert preempted == (list(requests) if index == 0 else [requests[choice]])


def test_resetting_the_prefix_cache_changes_no_token(
    demo: DemoModel, reference: dict[str, list[Choice]]
):
    def forget(play: Play, requests: range) -> None:
        play.preempt(requests, swap=False)
        play.driver.scheduler.reset_prefix_cache()

    play = Play(demo, SETTINGS["cached"]).run(forget)

    assert_undisturbed(play, reference)
    resumed = [
        record
        for request in chain.from_iterable(play.requests)
        for record in play.records(request, Resumed)
    ]
    assert any(record.cached_tokens == 0 for record in resumed)


def test_a_host_copy_without_the_blocks_it_shared_is_recomputed(
    demo: DemoModel, reference: dict[str, list[Choice]]
):
    """One choice is swapped while its siblings hold its first blocks; those are forgotten."""

    def disturb(play: Play, requests: range) -> None:
        if requests[0] == 20:
            play.hold(requests)
            play.preempt(requests[1:2], swap=True)
            play.later(1, play.driver.scheduler.reset_prefix_cache)
            play.later(2, lambda: play.release(requests))

    play = Play(demo, SETTINGS["cached"]).run(disturb)

    assert_undisturbed(play, reference)
    records = play.records(21, Preempted, HostCopyDropped, Resumed)
    assert [type(record) for record in records] == [Preempted, HostCopyDropped, Resumed]
    assert records[0].swapped
    assert not records[2].from_host


@pytest.mark.parametrize(
    ("num_host_blocks", "is_cached", "flavours"),
    [(0, True, {False}), (4, False, {True, False}), (160, False, {True})],
)
def test_a_pool_that_is_too_small_changes_no_token(
    demo: DemoModel,
    reference: dict[str, list[Choice]],
    num_host_blocks: int,
    is_cached: bool,
    flavours: set[bool],
):
    """It holds their prompts and no more; they are swapped while there is room on the host."""
    limits = {"num_blocks": 24, "num_host_blocks": num_host_blocks, "max_num_batched_tokens": 512}

    play = Play(demo, CROWD, enable_prefix_caching=is_cached, **limits).run()

    assert_undisturbed(play, reference)
    preempted = [record for record in play.driver.decided if isinstance(record, Preempted)]
    assert len({record.request for record in preempted}) > 2
    assert {record.cause for record in preempted} == {Cause.MEMORY}
    assert {record.swapped for record in preempted} == flavours


def test_a_warm_cache_changes_no_token(demo: DemoModel, reference: dict[str, list[Choice]]):
    """Once more, after the same requests have left all that they computed."""
    play = Play(demo, CROWD, enable_prefix_caching=True, max_num_batched_tokens=512).run()
    first = play.requests[:]
    for case, requests in zip(CROWD, first, strict=True):
        play.arrive(case, like=requests)

    play.run()

    assert_undisturbed(play, reference)
    for case, requests in zip(CROWD, play.requests[len(first) :], strict=True):
        found = (case.prompt_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE
        assert play.driver.cached[requests[0]] == found
