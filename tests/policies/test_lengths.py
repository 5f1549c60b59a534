"""Policies that go by how long outputs become: predicted, or as far as they have come."""

import random
from dataclasses import replace

import numpy as np
import pytest

from cadenza.policies import RequestColumns, StepView, hookimpl
from cadenza.policies.builtin import (
    BUILTIN,
    Cheapest,
    FewestGenerated,
    Mlfq,
    NoPrediction,
    ObservedLengths,
    SrptLimited,
)
from cadenza.policies.decisions import Decisions
from cadenza.policies.lengths import LengthPredictor
from cadenza.policies.profile import Profile
from cadenza.testing import Driver
from tests.policies.views import STEP, order_of, whole

WIDE = replace(STEP, token_budget=1000)


class TestLengthPredictor:
    def test_at_first_everybody_is_expected_to_use_max_tokens(self):
        assert LengthPredictor().total(whole(max_tokens=[5, 70])).tolist() == [5.0, 70.0]

    def test_a_kind_draws_away_from_all_others_as_it_is_seen(self):
        lengths = LengthPredictor()
        for _ in range(200):
            lengths.learn(whole(tenant=[1, 2], generated_tokens=[10, 90]))
        short, long, new = lengths.total(whole(tenant=[1, 2, 3])).tolist()

        assert short == pytest.approx(10, abs=4)
        assert long == pytest.approx(90, abs=4)
        assert new == pytest.approx(50, abs=2)

    def test_what_is_said_goes_before_what_was_learned(self):
        lengths = LengthPredictor()
        lengths.learn(whole(generated_tokens=[10]))

        assert lengths.total(whole(predicted_tokens=[0, 33, 500])).tolist() == [10, 33, 100]

    def test_requests_that_never_generated_teach_nothing(self):
        lengths = LengthPredictor()
        lengths.learn(whole(generated_tokens=[0]))

        assert lengths.total(whole(max_tokens=[40])).tolist() == [40]

    def test_what_remains_is_at_least_a_token_and_grows_for_who_outgrows_it(self):
        requests = whole(
            predicted_tokens=[20] * 5,
            generated_tokens=[5, 20, 30, 60, 99],
        )

        assert LengthPredictor().remaining(requests).tolist() == [15, 1, 10, 40, 1]

    def test_old_lengths_fade(self):
        lengths = LengthPredictor()
        for length in (10, 90):
            for _ in range(1500):
                lengths.learn(whole(generated_tokens=[length]))

        assert lengths.total(whole(max_tokens=[100])).tolist() == [pytest.approx(90, abs=1)]


class TestSrptLimited:
    def test_the_fewest_steps_to_come_are_first(self):
        waiting = whole(
            predicted_tokens=[50, 10, 10], prompt_tokens=[10, 10, 3000], generated_tokens=[45, 0, 0]
        )

        # 5 steps and a bit, 10 and a bit, 13
        order = order_of(SrptLimited().order_admissions(waiting, WIDE), waiting)
        assert order == [0, 1, 2]

    def test_only_who_has_not_come_far_is_pushed_out_and_only_by_a_shorter_one(self):
        candidate = whole(predicted_tokens=[10])
        running = whole(
            predicted_tokens=[50, 50, 12, 10],
            generated_tokens=[10, 40, 0, 0],
            computed_tokens=[19, 49, 9, 9],
        )

        margins = SrptLimited().allow_displacement(candidate, running, WIDE)

        assert (margins > 0).tolist() == [True, False, False, False]

    @pytest.mark.parametrize(("share", "allowed"), [(0.0, False), (1.0, True)])
    def test_the_share_reaches_from_never_to_always(self, share: float, allowed: bool):
        policy = SrptLimited(SrptLimited.Options(share=share))
        running = whole(predicted_tokens=[90], generated_tokens=[40], computed_tokens=[49])
        margins = policy.allow_displacement(whole(predicted_tokens=[5]), running, WIDE)

        assert (margins > 0).tolist() == [allowed]

    def test_no_two_push_each_other_out(self):
        rng = np.random.default_rng(2)
        policy = SrptLimited()
        for _ in range(200):
            facts = {
                "predicted_tokens": rng.integers(1, 100, 2),
                "generated_tokens": rng.integers(0, 50, 2),
            }
            waiting = [whole(**{name: [both[i]] for name, both in facts.items()}) for i in (0, 1)]
            margins = [
                policy.allow_displacement(waiting[i], waiting[1 - i], WIDE)[0] for i in (0, 1)
            ]
            assert min(margins) <= 0

    def test_options_are_checked(self):
        with pytest.raises(ValueError, match="share"):
            SrptLimited.Options(share=1.5)


def mean_time(policy: str, *, displaces: bool = False) -> float:
    """Two tenants, one with answers of 2 tokens and one with 30, at a seat each of two."""
    chosen = {"order_admissions": policy}
    if displaces:
        chosen["allow_displacement"] = policy
    driver = Driver(Profile(chosen), num_blocks=64, max_num_seqs=2)
    rng, arrived, took = random.Random(8), {}, {}
    request = 0
    for step in range(600):
        if step < 500 and rng.random() < 0.15:
            long = rng.random() < 0.3
            tenant, length = ("long", 30) if long else ("short", 2)
            prompt = [rng.randrange(1, 900) for _ in range(4)]
            # its end is known by a stop token, not by max_tokens
            driver.add(request, prompt, 32, tenant=tenant, ignore_eos=True)
            arrived[request] = driver.now_s, length
            request += 1
        report = driver.step()
        for generated in report.requests[report.tokens >= 0].tolist():
            since_s, length = arrived[generated]
            if len(driver.tokens[generated]) == length:
                driver.scheduler.finish(generated, length)
                took[generated] = driver.now_s - since_s
    driver.run()
    assert len(took) == request
    return float(np.mean(list(took.values())))


def test_learned_lengths_shorten_the_mean_time_and_pushing_out_shortens_it_more():
    fcfs, order, both = (
        mean_time("fcfs"),
        mean_time("srpt-limited"),
        mean_time("srpt-limited", displaces=True),
    )

    assert order < 0.9 * fcfs
    assert both < order


class TestMlfq:
    def queues(self, **values: list[int]) -> list[float]:
        policy = Mlfq(Mlfq.Options(quantum=100))
        return policy.order_admissions(whole(**values), STEP).tolist()

    def test_a_prompt_joins_the_first_queue_that_covers_it(self):
        assert self.queues(prompt_tokens=[1, 100, 101, 200, 201, 1600]) == [0, 0, 1, 1, 2, 4]

    def test_what_the_cache_holds_is_no_service(self):
        assert self.queues(prompt_tokens=[300], cached_tokens=[256]) == [0]

    def test_a_request_sinks_as_it_uses_up_its_quanta(self):
        # quanta 100, 200, 400 from the first queue on: it leaves them at 100, 300 and 700
        service = [100, 102, 300, 302, 700, 702]
        generated = [(used - 50) // 2 for used in service]
        victims = {"admission": [1] * 6, "prompt_tokens": [50] * 6, "generated_tokens": generated}

        assert self.queues(**victims) == [0, 1, 1, 2, 2, 3]

    def test_who_skipped_queues_has_the_quantum_of_the_one_it_joined(self):
        # joins queue 2 with 400; leaves it at 400, not before
        victims = {"admission": [1, 1], "prompt_tokens": [350, 350], "generated_tokens": [25, 26]}

        assert self.queues(**victims) == [2, 3]

    def test_who_waits_too_long_is_promoted(self):
        policy = Mlfq(Mlfq.Options(quantum=100, promote_s=3))
        waiting = whole(prompt_tokens=[900, 900, 50], waits_since_s=[7.0, 7.5, 9.0])

        scores = policy.order_admissions(waiting, replace(STEP, now_s=10.0))

        assert scores.tolist() == [0, 4, 0]

    def test_an_earlier_queue_pushes_out_later_ones_whatever_was_promoted(self):
        policy = Mlfq(Mlfq.Options(quantum=100))
        candidate = whole(prompt_tokens=[150], waits_since_s=[-100.0])
        running = whole(
            prompt_tokens=[90, 150, 150], generated_tokens=[0, 10, 200], admission=[0, 1, 2]
        )

        assert policy.allow_displacement(candidate, running, STEP).tolist() == [-1, 0, 1]

    def test_equals_do_not_push_each_other_out_by_what_the_cache_holds(self):
        policy = Mlfq(Mlfq.Options(quantum=100))
        candidate = whole(prompt_tokens=[900], cached_tokens=[896])
        running = whole(prompt_tokens=[900], admission=[0])

        assert policy.allow_displacement(candidate, running, STEP).tolist() == [0]


class TestVictims:
    def test_the_fewest_generated_leave_first_of_equals_the_longest_prompt(self):
        running = whole(generated_tokens=[9, 1, 5, 1], prompt_tokens=[10, 10, 10, 400])

        scores = FewestGenerated().select_victims(running, STEP)

        assert np.argsort(scores).tolist() == [3, 1, 2, 0]

    def test_who_will_hold_much_for_long_is_cheapest(self):
        running = whole(
            computed_tokens=[100, 100, 100],
            blocks_alone=[10, 10, 10],
            predicted_tokens=[60, 60, 60],
            generated_tokens=[10, 55, 30],
        )

        scores = Cheapest().select_victims(running, STEP)

        # (64 + 100) tokens for 10 blocks of 50, 5 and 30 steps
        assert scores.tolist() == pytest.approx([164 / 500, 164 / 50, 164 / 300])

    def test_what_others_hold_too_is_neither_freed_nor_computed_again(self):
        running = whole(
            computed_tokens=[100, 100, 100], blocks_alone=[10, 3, 0], predicted_tokens=[1, 1, 1]
        )
        scores = Cheapest().select_victims(running, STEP)

        assert scores.tolist() == pytest.approx([164 / 10, 94 / 3, 64])

    def test_one_large_victim_is_cheaper_a_block_than_many_small_ones(self):
        running = whole(
            computed_tokens=[1000, 10], blocks_alone=[100, 1], predicted_tokens=[50, 50]
        )
        large, small = Cheapest().select_victims(running, STEP).tolist()

        assert large < small

    def test_lengths_are_learned_from_those_that_finish(self):
        policy = Cheapest()
        for _ in range(100):
            policy.on_finished(whole(tenant=[1, 2], generated_tokens=[4, 80]), STEP)
        running = whole(tenant=[1, 2], blocks_alone=[5, 5], computed_tokens=[50, 50])
        short, long = policy.select_victims(running, STEP).tolist()

        assert long < short

    @pytest.mark.parametrize("policy", ["fewest-generated", "cheapest"])
    def test_a_pool_that_is_too_small_works_off_its_load(self, policy: str):
        profile = Profile({"select_victims": policy, "reserve_blocks": "none"})
        driver = Driver(profile, num_blocks=18)
        for request in range(12):
            driver.add(request, [request + 1] * 9, max_tokens=20, ignore_eos=True)
        driver.run()

        assert driver.preempted
        assert all(len(tokens) == 20 for tokens in driver.tokens.values())


class TestPredictions:
    def test_by_default_nobody_predicts_and_nobody_is_asked(self):
        assert NoPrediction().predict_lengths(whole(arrival=[0, 1]), STEP).tolist() == [0.0, 0.0]
        assert not Decisions(Profile()).predicts_lengths
        assert Decisions(Profile({"predict_lengths": "observed-lengths"})).predicts_lengths

    def test_observed_lengths_say_nothing_before_anything_has_finished(self):
        policy = ObservedLengths()
        new = whole(tenant=[1, 2])
        assert policy.predict_lengths(new, STEP) is None

        for _ in range(200):
            policy.on_finished(whole(tenant=[1, 2], generated_tokens=[10, 90]), STEP)
        assert policy.predict_lengths(new, STEP).tolist() == pytest.approx([10, 90], abs=4)

    @pytest.mark.parametrize(
        ("answer", "lengths"),
        [
            (np.array([3.5, 0.0]), [3.5, 0.0]),
            (np.array([3, 10**9]), [3.0, 1e9]),
            (None, [0.0, 0.0]),
        ],
        ids=repr,
    )
    def test_an_answer_that_can_be_used(self, answer: object, lengths: list[float]):
        decisions = self._answering(answer)

        assert decisions.predict_lengths(whole(arrival=[0, 1]), STEP).tolist() == lengths
        assert decisions.faults == 0

    @pytest.mark.parametrize(
        "answer",
        [
            np.array([1.0, np.nan]),
            np.array([1.0, np.inf]),
            np.array([1.0, -1.0]),
            np.array([1.0]),
            np.array([True, False]),
            [1.0, 2.0],
        ],
        ids=repr,
    )
    def test_a_wrong_answer_says_nothing(self, answer: object):
        decisions = self._answering(answer)

        assert decisions.predict_lengths(whole(arrival=[0, 1]), STEP).tolist() == [0.0, 0.0]
        assert decisions.faults == 1

    @staticmethod
    def _answering(answer: object) -> Decisions:
        class Policy:
            @hookimpl
            def predict_lengths(self, arrived: RequestColumns, step: StepView) -> object:
                return answer

        return Decisions(Profile({"predict_lengths": "mine"}, {**BUILTIN, "mine": Policy}))

    def test_an_order_by_lengths_goes_by_what_was_predicted(self):
        """Requests with an even number of prompt tokens are said to be short."""

        class Even:
            @hookimpl
            def predict_lengths(self, arrived: RequestColumns, step: StepView) -> np.ndarray:
                return np.where(arrived.prompt_tokens % 2, 50.0, 2.0)

        chosen = {"order_admissions": "srpt-limited", "predict_lengths": "even"}
        driver = Driver(Profile(chosen, {**BUILTIN, "even": Even}), max_num_seqs=1)
        for request, length in enumerate((3, 4, 5, 6)):
            driver.add(request, [1] * length, max_tokens=60, ignore_eos=True)
        driver.run()

        assert driver.admitted[:2] == [1, 3]
