"""The five phases, one behaviour a test. Every step is followed by a full recount (`Driver`)."""

import numpy as np
import pytest

from cadenza.policies import RequestColumns, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.profile import Profile
from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.request import Refused
from cadenza.scheduler.states import FinishReason
from cadenza.testing import Driver, oracle

NO_RESERVATION = {"reserve_blocks": "none"}


def greedy_driver(**limits: object) -> Driver:
    """A driver that over-commits: nothing is reserved for growth."""
    return Driver(Profile(NO_RESERVATION), **limits)


def test_a_request_gets_the_tokens_it_would_get_alone():
    driver = Driver()
    driver.add(1, [5, 6, 7], max_tokens=10)

    driver.run()

    assert driver.tokens[1] == oracle([5, 6, 7], 10)
    assert driver.ends[1] is FinishReason.LENGTH


def test_a_token_reaches_the_report_of_the_very_next_step():
    driver = Driver()
    driver.add(1, [5, 6, 7], max_tokens=2)

    assert driver.step().requests.tolist() == []
    assert driver.step().tokens.tolist() == oracle([5, 6, 7], 1)


def test_decodes_run_beside_prefills_in_one_step():
    driver = Driver(max_num_batched_tokens=8, max_num_seqs=4)
    driver.add(1, [1], max_tokens=20)
    driver.step()
    driver.add(2, list(range(1, 31)), max_tokens=2)

    driver.step()

    assert driver.plan is not None
    assert driver.plan.requests.tolist() == [1, 2]
    assert driver.plan.num_new.tolist() == [1, 7]
    assert driver.plan.samples.tolist() == [0]


def test_a_chunked_prompt_gives_the_same_tokens():
    prompt = list(range(1, 50))
    driver = Driver(max_num_batched_tokens=8, max_num_seqs=4)
    driver.add(1, prompt, max_tokens=5)

    driver.run()

    assert driver.tokens[1] == oracle(prompt, 5)


def test_a_prefill_moves_on_beside_decodes_in_every_other_seat():
    driver = Driver(max_num_seqs=4, max_num_batched_tokens=8)
    for request in range(3):
        driver.add(request, [request + 1], max_tokens=30)
    for _ in range(3):
        driver.step()
    driver.add(3, list(range(1, 21)), max_tokens=1)

    for _ in range(4 + 1):
        driver.step()

    assert driver.tokens[3] == oracle(list(range(1, 21)), 1)


def test_a_short_prompt_starts_beside_a_long_prefill():
    driver = Driver(max_num_batched_tokens=16)
    driver.add(1, list(range(1, 60)), max_tokens=2)
    driver.step()
    driver.add(2, [1, 2, 3], max_tokens=2)

    driver.step()
    driver.step()

    assert driver.tokens == {2: oracle([1, 2, 3], 1)}


@pytest.mark.parametrize("token_index", [0, 1, 4])
def test_eos_ends_a_request_and_is_reported(token_index: int):
    tokens = oracle([5, 6], 8)
    driver = Driver(eos_token_ids=frozenset({tokens[token_index]}))
    driver.add(1, [5, 6], max_tokens=8)

    driver.run()

    assert driver.tokens[1] == tokens[: token_index + 1]
    assert driver.ends[1] is FinishReason.EOS


def test_ignore_eos_goes_on():
    tokens = oracle([5, 6], 8)
    driver = Driver(eos_token_ids=frozenset({tokens[2]}))
    driver.add(1, [5, 6], max_tokens=8, ignore_eos=True)

    driver.run()

    assert driver.tokens[1] == tokens


def test_a_stop_token_of_one_request_does_not_stop_another():
    tokens = oracle([5, 6], 8)
    driver = Driver()
    driver.add(1, [5, 6], max_tokens=8, stop_token_ids=frozenset({tokens[3]}))
    driver.add(2, [5, 6], max_tokens=8)

    driver.run()

    assert driver.tokens[1] == tokens[:4]
    assert driver.ends[1] is FinishReason.STOP_TOKEN
    assert driver.tokens[2] == tokens


def test_the_context_end_is_a_length_finish():
    driver = Driver(max_model_len=16)
    driver.add(1, [1] * 12, max_tokens=100)

    driver.run()

    assert len(driver.tokens[1]) == 4
    assert driver.ends[1] is FinishReason.LENGTH


def test_a_prompt_without_room_for_a_token_is_refused_at_once():
    driver = Driver(max_model_len=16)

    with pytest.raises(Refused, match="16 tokens leave no room"):
        driver.add(1, [1] * 16)

    assert not driver.scheduler.has_unfinished


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": []}, "the prompt is empty"),
        ({"emitted": np.array([1, 2], dtype=np.int32), "max_tokens": 2}, "2 emitted tokens leave"),
        ({"stop_token_ids": frozenset(range(17))}, "more than 16 stop token ids"),
        ({"n": 0}, "n is 0, but 1 to 8 choices can run together"),
        ({"n": 9}, "n is 9, but 1 to 8 choices can run together"),
        ({"n": 2, "emitted": np.array([1], dtype=np.int32)}, "n must be 1 beside them"),
    ],
)
def test_what_cannot_run_is_refused_and_disturbs_nobody(fields: dict[str, object], message: str):
    driver = Driver()
    driver.add(1, [5, 6])

    with pytest.raises(Refused, match=message):
        driver.add(2, **{"prompt": [1], **fields})
    with pytest.raises(Refused, match="request 1 is here already"):
        driver.add(1, [7])

    driver.run()
    assert driver.tokens == {1: oracle([5, 6], 4)}


def test_no_choice_may_have_the_number_of_a_live_one():
    driver = Driver()
    driver.add(1, [5], n=2)
    for request, n, taken in ((0, 2, 1), (2, 1, 2), (0, 3, 1)):
        with pytest.raises(Refused, match=f"request {taken} is here already"):
            driver.add(request, [7], n=n)

    driver.add(3, [7], n=2)
    driver.run()
    assert sorted(driver.ends) == [1, 2, 3, 4]


def test_an_absurd_max_tokens_means_the_rest_of_the_context():
    driver = Driver(max_model_len=16)
    driver.add(1, [1] * 12, max_tokens=2**62)

    driver.run()

    assert driver.tokens[1] == oracle([1] * 12, 4)


def test_emitted_tokens_count_as_output_and_are_not_repeated():
    tokens = oracle([5, 6], 8)
    driver = Driver()
    driver.add(1, [5, 6], max_tokens=8, emitted=np.array(tokens[:3], dtype=np.int32))

    driver.run()

    assert driver.tokens[1] == tokens[3:]


def test_a_failed_row_ends_alone():
    driver = Driver()
    driver.runner.fail = {1}
    driver.add(1, [1, 2, 3])
    driver.add(2, [3], max_tokens=3)

    driver.run()

    assert driver.ends == {1: FinishReason.FAILED, 2: FinishReason.LENGTH}
    assert driver.tokens == {2: oracle([3], 3)}


def test_what_a_failed_row_computed_is_never_found_again():
    """It fails in its second chunk, when its first blocks have been published."""
    driver = Driver(max_num_batched_tokens=12, max_num_seqs=4)
    prompt = list(range(1, 21))
    driver.add(1, prompt)
    driver.step()
    driver.step()
    driver.runner.fail = {1}
    driver.run()
    driver.runner.fail = set()
    driver.add(3, prompt)

    driver.run()

    assert driver.cached[3] == 0
    assert driver.tokens[3] == oracle(prompt, 4)


def test_what_a_failed_row_held_is_never_found_again():
    """Not even what it had found itself, and although others still hold and publish after it."""
    driver = Driver()
    prompt = list(range(1, 14))
    driver.add(1, prompt, max_tokens=40)
    for _ in range(3):
        driver.step()
    driver.add(2, prompt)
    driver.runner.fail = {2}
    driver.step()
    driver.step()
    for _ in range(6):  # 1 fills a block of its own meanwhile
        driver.step()
    driver.add(3, prompt)
    for _ in range(3):
        driver.step()
    driver.add(4, prompt)
    driver.step()

    assert driver.ends == {2: FinishReason.FAILED}
    assert driver.cached == {1: 0, 2: 12, 3: 0, 4: 12}


def test_a_failed_row_does_not_find_its_own_blocks_after_a_preemption():
    driver = Driver(max_num_batched_tokens=16)
    prompt = list(range(1, 41))
    driver.add(1, prompt)
    driver.step()
    driver.step()
    driver.scheduler.preempt(1, swap=False)
    driver.runner.fail = {1}
    driver.run()
    driver.add(2, prompt)
    driver.step()

    assert driver.ends[1] is FinishReason.FAILED
    assert driver.cached[2] == 0


def test_nothing_computed_before_a_reset_is_found_after_it():
    driver = Driver()
    prompt = list(range(1, 14))
    driver.add(1, prompt, max_tokens=40)
    for _ in range(3):
        driver.step()
    driver.scheduler.reset_prefix_cache()
    for _ in range(8):
        driver.step()
    driver.add(2, prompt)
    driver.step()

    assert driver.cached == {1: 0, 2: 0}
    driver.run()
    assert driver.tokens[2] == oracle(prompt, 4)


def test_a_grant_reaches_the_stream_although_the_choice_that_it_names_has_ended():
    driver = Driver()
    driver.add(1, [1, 2, 3], max_tokens=8, n=2, credit=4)
    driver.step()
    driver.scheduler.drop(1)
    for _ in range(6):
        driver.step()
    assert not driver.scheduler.has_work

    driver.scheduler.grant(1, 100)
    driver.run()

    assert driver.tokens[2] == oracle([1, 2, 3], 8, choice=1)


@pytest.mark.parametrize(
    "field",
    [
        {"priority": 1 << 63},
        {"credit": 1 << 62},
        {"stop_token_ids": frozenset({1 << 31})},
        {"deadline_s": float("nan")},
    ],
)
def test_a_number_that_no_column_holds_is_refused_and_leaves_nothing(field: dict[str, object]):
    driver = Driver()

    with pytest.raises(Refused):
        driver.add(1, [1, 2], **field)

    assert not driver.scheduler.has_unfinished
    driver.step()


def test_a_reservation_for_one_that_is_passed_over_does_not_keep_others_out():
    driver = Driver(
        Profile({"reserve_blocks": "no-evict"}),
        num_blocks=16,
        max_num_seqs=4,
        max_num_batched_tokens=8,
    )
    driver.add(1, [1] * 20, max_tokens=4)
    driver.add(2, [2] * 10, max_tokens=30)  # too long to prefill beside the first
    driver.add(3, [3], max_tokens=1)
    driver.step()

    assert driver.admitted == [1, 3]


@pytest.mark.parametrize("at_step", range(9))
def test_a_dropped_request_holds_nothing_after_the_next_step(at_step: int):
    """Whether it waits, prefills in chunks, decodes, or has just ended."""
    driver = Driver(max_num_batched_tokens=8, max_num_seqs=4)
    driver.add(1, list(range(1, 30)), max_tokens=4)
    driver.add(2, [9, 9], max_tokens=12)
    for _ in range(at_step):
        driver.step()

    driver.scheduler.drop(1)
    driver.scheduler.drop(1)
    driver.step()
    driver.scheduler.drop(1)

    assert driver.plan is not None
    assert driver.plan.requests.tolist() == [2]
    driver.run()
    assert driver.tokens[2] == oracle([9, 9], 12)


def test_dropping_an_unknown_request_changes_nothing():
    driver = Driver()
    driver.scheduler.drop(99)

    assert not driver.scheduler.has_unfinished


def test_requests_enter_in_order_of_arrival_while_there_are_seats():
    driver = Driver(max_num_seqs=2)
    for request in range(5):
        driver.add(request, [1, 2], max_tokens=2)

    driver.run()

    assert driver.admitted == [0, 1, 2, 3, 4]


def test_another_priority_counts_from_the_next_step_on():
    driver = Driver(Profile({"order_admissions": "priority"}), max_num_seqs=1)
    for request, priority in enumerate((0, 3, 2, 1)):
        driver.add(request, [1, 2], max_tokens=2, priority=priority)
    driver.step()
    driver.scheduler.reprioritise(1, -5)
    driver.scheduler.reprioritise(3, 9)
    driver.scheduler.reprioritise(7, -9)  # nobody's

    driver.run()

    assert driver.admitted == [0, 1, 2, 3]


def test_over_commitment_preempts_the_newest_and_loses_nothing():
    driver = greedy_driver(num_blocks=6, max_model_len=24)
    for request in range(3):
        driver.add(request, [request + 1] * 7, max_tokens=12)

    driver.run()

    assert driver.preempted[0] == 2
    assert 0 not in driver.preempted
    for request in range(3):
        assert driver.tokens[request] == oracle([request + 1] * 7, 12)


def test_nobody_is_admitted_in_a_step_that_preempts():
    driver = greedy_driver(num_blocks=6, max_model_len=24)
    for request in range(3):
        driver.add(request, [request + 1] * 7, max_tokens=12)
    while driver.scheduler.has_unfinished:
        report = driver.step()
        assert not (len(report.preempted) and len(report.admitted))

    assert driver.preempted


def test_the_reservation_pays_for_growth():
    """The same load that over-commits without a reservation never preempts with one."""
    profile = Profile({"reserve_blocks": "whole"}, {**BUILTIN, "whole": ReserveWhole})
    driver = Driver(profile, num_blocks=6, max_model_len=24)
    for request in range(3):
        driver.add(request, [request + 1] * 7, max_tokens=12)

    driver.run()

    assert driver.preempted == []
    assert driver.tokens[2] == oracle([3] * 7, 12)


class ReserveWhole:
    """Keeps room for every token that may still come."""

    name = "whole"

    @hookimpl
    def reserve_blocks(
        self, running: RequestColumns, candidates: RequestColumns, step: StepView
    ) -> np.ndarray:
        def growth(rows: RequestColumns) -> np.ndarray:
            total = rows.prompt_tokens + rows.max_tokens
            held = np.maximum(rows.blocks_held, -(-rows.num_tokens // step.block_size))
            return -(-total // step.block_size) - held

        return int(growth(running).sum()) + np.concatenate(([0], growth(candidates).cumsum()))


def test_the_watermark_keeps_blocks_from_newcomers_but_not_on_an_idle_engine():
    driver = greedy_driver(num_blocks=8, max_model_len=32, watermark=0.5)
    driver.add(1, [1] * 26, max_tokens=3)
    driver.add(2, [2] * 2, max_tokens=3)

    driver.step()
    assert driver.admitted == [1]

    driver.run()
    assert driver.admitted == [1, 2]


@pytest.mark.parametrize("length", [31, 32, 33])
def test_a_request_may_use_the_whole_pool(length: int):
    driver = greedy_driver(num_blocks=9, block_size=4, max_model_len=36)
    driver.add(1, [1] * length, max_tokens=36 - length)
    driver.add(2, [2], max_tokens=2)

    driver.run()

    assert driver.tokens[1] == oracle([1] * length, 36 - length)
    assert driver.tokens[2] == oracle([2], 2)


def test_a_second_request_finds_the_prefix_of_the_first():
    driver = Driver()
    prefix = list(range(1, 13))
    driver.add(1, [*prefix, 50], max_tokens=2)
    driver.run()
    driver.add(2, [*prefix, 60, 61], max_tokens=3)
    driver.run()

    assert driver.cached == {1: 0, 2: 12}
    assert driver.tokens[2] == oracle([*prefix, 60, 61], 3)


@pytest.mark.parametrize("length", [4, 8, 12])
def test_a_wholly_cached_prompt_still_computes_a_token(length: int):
    prompt = list(range(1, length + 1))
    driver = Driver()
    for request in (1, 2):
        driver.add(request, prompt, max_tokens=3)
        driver.run()

    assert driver.cached[2] == length - 4
    assert driver.tokens[2] == driver.tokens[1] == oracle(prompt, 3)


def test_generated_blocks_are_found_by_the_next_turn():
    driver = Driver()
    driver.add(1, [1, 2, 3], max_tokens=9)
    driver.run()
    history = [1, 2, 3, *driver.tokens[1]]
    driver.add(2, [*history, 77], max_tokens=2)
    driver.run()

    assert driver.cached[2] == 8  # the last generated token was never computed
    assert driver.tokens[2] == oracle([*history, 77], 2)


def test_salts_keep_prefixes_apart():
    driver = Driver()
    for request, salt in ((1, "a"), (2, "b"), (3, "a")):
        driver.add(request, list(range(1, 10)), cache_salt=salt)
        driver.run()

    assert driver.cached == {1: 0, 2: 0, 3: 8}


def test_a_resumed_request_finds_its_own_blocks_again():
    driver = greedy_driver(num_blocks=13, max_model_len=24)
    for request in range(3):
        driver.add(request, [request + 1] * 7, max_tokens=12)

    driver.run()

    assert driver.preempted
    assert driver.cached[driver.preempted[0]] > 0


def test_statistics_count_what_happened():
    driver = Driver()
    prompt = list(range(1, 10))
    for request in (1, 2):
        driver.add(request, prompt, max_tokens=3)
        driver.run()

    statistics = driver.scheduler.statistics()

    assert statistics.prefix_queries == 18
    assert statistics.prefix_hits == 8
    assert statistics.generated_tokens == 6
    assert statistics.computed_tokens == (9 + 2) + (1 + 2)
    assert statistics.running == statistics.waiting == statistics.preemptions == 0


def test_a_resumed_request_is_looked_up_once_in_the_statistics():
    driver = greedy_driver(num_blocks=13, max_model_len=24)
    for request in range(3):
        driver.add(request, [request + 1] * 7, max_tokens=12)

    driver.run()

    assert driver.preempted
    assert driver.scheduler.statistics().prefix_queries == 21


def test_prefix_caching_can_be_off():
    driver = Driver(enable_prefix_caching=False)
    for request in (1, 2):
        driver.add(request, list(range(1, 10)))
        driver.run()

    assert driver.cached == {1: 0, 2: 0}
    assert driver.scheduler.statistics().cached_blocks == 0


class LatestFirst:
    """The unfairest order: whoever came last goes first."""

    name = "latest-first"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
        return -waiting.arrival.astype(float)


@pytest.mark.parametrize("seats", [1, 8])
def test_nobody_is_overtaken_for_ever(seats: int):
    """Under a flood of better-ranked arrivals: the bound, and what one step may add to it."""
    profile = Profile(
        {"order_admissions": "latest-first"}, {**BUILTIN, "latest-first": LatestFirst}
    )
    driver = Driver(profile, max_num_seqs=seats)
    for request in range(2):
        driver.add(request, [1], max_tokens=1)
    for request in range(2, 300):
        driver.add(request, [1], max_tokens=1)
    driver.run()

    assert driver.admitted.index(0) <= 64 + seats
    assert driver.admitted.index(1) <= 64 + seats + 4


def test_starving_requests_take_every_fourth_admission():
    class FirstEightStarve:
        @hookimpl
        def guard_starvation(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
            return waiting.request < 8

    policies = {**BUILTIN, "latest-first": LatestFirst, "starve": FirstEightStarve}
    chosen = {"order_admissions": "latest-first", "guard_starvation": "starve"}
    driver = Driver(Profile(chosen, policies), max_num_seqs=1)
    for request in range(32):
        driver.add(request, [1], max_tokens=1)

    driver.run()

    starving = [index for index, request in enumerate(driver.admitted) if request < 8]
    assert starving == list(range(0, 32, 4))


def test_a_resumed_request_overtakes_nobody():
    """Requests 1 and 2 enter before 0, are preempted, and enter again: that counts once each."""

    class LatestFirst:
        @hookimpl
        def order_admissions(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
            return -waiting.arrival.astype(float)

    seen: list[int] = []

    class Watch:
        @hookimpl
        def guard_starvation(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
            seen.extend(waiting.overtakes[waiting.request == 0].tolist())
            return np.zeros(len(waiting), dtype=bool)

    chosen = {**NO_RESERVATION, "order_admissions": "latest", "guard_starvation": "watch"}
    policies = {**BUILTIN, "latest": LatestFirst, "watch": Watch}
    driver = Driver(Profile(chosen, policies), num_blocks=6, max_model_len=24)
    driver.add(0, [1] * 23, max_tokens=1)
    for request in (1, 2):
        driver.add(request, [request + 1] * 7, max_tokens=12)

    driver.run()

    assert driver.preempted
    assert seen[-1] == 2


class NobodyEnters:
    """Keeps every request out."""

    name = "nobody-enters"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
        return np.full(len(waiting), np.inf)


def test_a_policy_cannot_keep_everybody_out_of_an_idle_engine():
    policies = {**BUILTIN, "nobody-enters": NobodyEnters}
    driver = Driver(Profile({"order_admissions": "nobody-enters"}, policies))
    driver.add(1, [1, 2], max_tokens=2)

    driver.run()

    assert driver.tokens[1] == oracle([1, 2], 2)


def test_the_oldest_request_is_never_preempted_even_by_an_adverse_policy():
    class Oldest:
        name = "oldest"

        @hookimpl
        def select_victims(self, running: RequestColumns, step: StepView) -> np.ndarray:
            return running.arrival.astype(float)

    profile = Profile({**NO_RESERVATION, "select_victims": "oldest"}, {**BUILTIN, "oldest": Oldest})
    driver = Driver(profile, num_blocks=6, max_model_len=24)
    for request in range(3):
        driver.add(request, [request + 1] * 7, max_tokens=12)

    driver.run()

    assert 1 in driver.preempted
    assert 0 not in driver.preempted


def test_same_arrivals_same_decisions():
    def trace() -> list[list[int]]:
        driver = greedy_driver(num_blocks=7, max_model_len=28)
        for request in range(6):
            driver.add(request, [request % 2 + 1] * 9, max_tokens=11)
        plans = []
        while driver.scheduler.has_unfinished:
            driver.step()
            if driver.plan:
                blocks = driver.plan.layout().blocks
                plans.append([*driver.plan.requests.tolist(), *blocks.tolist()])
        return plans

    assert trace() == trace()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_model_len": 200}, "max_model_len 200 does not fit the pool of 32 blocks"),
        ({"max_num_batched_tokens": 11}, "max_num_batched_tokens 11 is under 12"),
        ({"watermark": 1.0}, "watermark 1.0 is no share"),
        ({"num_host_blocks": -1}, "num_host_blocks -1 is negative"),
        ({"max_preemptions": -1}, "max_preemptions -1 is negative"),
        ({"stall_steps": -1}, "stall_steps -1 is negative"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(limits: dict[str, object], message: str):
    good = {
        "num_blocks": 32,
        "block_size": 4,
        "max_model_len": 64,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
    }

    with pytest.raises(ValueError, match=message):
        SchedulerConfig(**{**good, **limits})
