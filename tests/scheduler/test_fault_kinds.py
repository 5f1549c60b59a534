"""Kinds of fault that continuous-batching schedulers are prone to: one test a kind.

A name says what goes wrong where the kind is met; a test asserts what is right. After every step
the `Driver` recounts all blocks, seats and reference counts.

Kinds that no scheduler can show, and that are tested elsewhere: a seeded request that draws other
numbers once it was preempted; a front that forgets a stream before it cancels it; log-probabilities
of a prompt beside a prefix hit, or all of them in memory at once; ids outside the vocabulary.
"""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from cadenza.policies.builtin.new_token_ratio import DECAY_STEPS
from cadenza.policies.profile import Profile
from cadenza.scheduler.decisions import Displaced, Resumed
from cadenza.scheduler.request import Refused
from cadenza.scheduler.states import FinishReason
from cadenza.testing import Driver, oracle

OVER_COMMITS = {"reserve_blocks": "none"}
SWAPS = {"reserve_blocks": "none", "choose_preemption": "swap"}
STRICT = {
    "order_admissions": "priority",
    "select_victims": "lowest-priority",
    "allow_displacement": "strict-priority",
    "reserve_blocks": "none",
}


def driver_of(chosen: dict[str, str], **limits: object) -> Driver:
    return Driver(Profile(chosen), **limits)


def unheld(driver: Driver) -> int:
    """Blocks that nobody holds."""
    statistics = driver.scheduler.statistics()
    return statistics.free_blocks + statistics.cached_blocks


def step_until_admitted(driver: Driver, request: int) -> None:
    while request not in driver.admitted:
        driver.step()


# Capacity


@pytest.mark.parametrize(("length", "fits"), [(28, True), (31, True), (32, False), (33, False)])
def test_a_prompt_around_the_size_of_the_pool_runs_or_is_refused_and_blocks_nobody(
    length: int, fits: bool
):
    """Seven blocks, eight with room for one token, eight without, and nine of eight."""
    driver = Driver(num_blocks=8, max_model_len=32)
    if fits:
        driver.add(1, [3] * length)
    else:
        with pytest.raises(Refused, match="leave no room to generate within max_model_len 32"):
            driver.add(1, [3] * length)
    driver.add(2, [5] * 5)

    driver.run()

    wanted = {1: oracle([3] * length, min(4, 32 - length))} if fits else {}
    assert driver.tokens == wanted | {2: oracle([5] * 5, 4)}


def test_who_eats_the_last_block_alone_ends_by_length_and_the_next_one_runs():
    driver = driver_of(OVER_COMMITS, num_blocks=8, max_model_len=32)
    driver.add(1, [3] * 20, max_tokens=500, ignore_eos=True)
    driver.add(2, [4] * 20, max_tokens=3)

    driver.run()

    assert driver.tokens == {1: oracle([3] * 20, 12), 2: oracle([4] * 20, 3)}
    assert driver.ends[1] is FinishReason.LENGTH


def test_a_pool_that_stays_nearly_full_moves_on_in_every_step():
    driver = driver_of(OVER_COMMITS, num_blocks=16, max_model_len=48)
    full = steps = 0
    for request in range(60):
        driver.add(request, [request + 1] * 9, max_tokens=20)
        for _ in range(2):
            driver.step()
            assert driver.plan is not None
            assert driver.plan.num_tokens
            full += unheld(driver) == 0
            steps += 1

    driver.run()

    assert full > steps // 4
    assert all(driver.tokens[request] == oracle([request + 1] * 9, 20) for request in range(60))


def test_after_everything_was_aborted_at_once_there_is_room_for_a_request_of_any_size():
    driver = driver_of(OVER_COMMITS, num_blocks=16, max_model_len=64)
    for request in range(20):
        driver.add(request, [request + 1] * 11, max_tokens=20)
    while unheld(driver):
        driver.step()
    for request in range(20):
        driver.scheduler.drop(request)
    driver.step()
    assert unheld(driver) == 16
    driver.add(99, [7] * 63, max_tokens=1)

    driver.step()

    assert driver.admitted[-1] == 99
    driver.run()
    assert driver.tokens[99] == oracle([7] * 63, 1)


def test_more_choices_than_the_pool_holds_are_swapped_out_and_all_come_back():
    driver = driver_of(
        SWAPS, num_blocks=60, num_host_blocks=300, max_num_seqs=26, max_num_batched_tokens=40
    )
    driver.add(0, [3] * 38, max_tokens=20, n=25)
    step_until_admitted(driver, 24)
    driver.add(25, [4] * 5, max_tokens=2)

    driver.run()

    assert driver.scheduler.statistics().swaps > 0
    assert driver.tokens[25] == oracle([4] * 5, 2)
    for choice in range(25):
        assert driver.tokens[choice] == oracle([3] * 38, 20, choice)


def test_who_was_swapped_out_almost_as_large_as_the_pool_comes_back_past_a_stalled_reader():
    """What nobody reads gives way, and what runs ends; then all eight blocks are its own."""
    driver = driver_of(SWAPS, num_blocks=8, num_host_blocks=8, max_model_len=32)
    driver.add(1, [3] * 25, max_tokens=6)
    for _ in range(3):
        driver.step()
    driver.scheduler.preempt(1, swap=True)
    driver.add(2, [4] * 3, max_tokens=20, credit=1, priority=0)
    driver.add(3, [5] * 3, max_tokens=9)
    for _ in range(40):
        driver.step()

    assert driver.tokens[1] == oracle([3] * 25, 6)
    assert driver.tokens[3] == oracle([5] * 3, 9)
    assert 2 not in driver.ends


@pytest.mark.parametrize("choice", [0, 1, 2])
def test_a_choice_of_several_may_be_swapped_out_at_any_step(choice: int):
    prompt = [3] * 21
    for at_step in range(16):
        driver = driver_of(SWAPS, num_host_blocks=32, max_num_seqs=4, max_num_batched_tokens=8)
        driver.add(0, prompt, max_tokens=9, n=3)
        for _ in range(at_step):
            driver.step()
        driver.scheduler.preempt(choice, swap=True)
        driver.step()
        driver.scheduler.preempt((choice + 1) % 3, swap=True)

        driver.run()

        for each in range(3):
            assert driver.tokens[each] == oracle(prompt, 9, each), f"swapped at step {at_step}"


# Order, priority and victims


def test_who_lost_the_seat_gets_it_back_in_order_of_arrival():
    """Nobody comes in while an earlier arrival waits, and the oldest never has to leave."""
    driver = driver_of(OVER_COMMITS, num_blocks=10, max_model_len=40, max_num_batched_tokens=60)
    for request in range(6):
        driver.add(request, [request + 1] * 7, max_tokens=16)
    while driver.scheduler.has_unfinished:
        report = driver.step()
        outside = set(range(6)) - set(driver.ends)
        outside -= set(driver.plan.requests.tolist()) if driver.plan else set()
        for request in report.admitted.tolist():
            assert all(request < other for other in outside)

    assert 0 not in driver.preempted
    assert len(driver.preempted) > 3
    for request in range(6):
        assert driver.preempted.count(request) <= driver.scheduler.config.max_preemptions


@pytest.mark.parametrize("swap", [False, True])
def test_two_evicted_in_one_step_and_one_in_the_next_come_back_first_come_first(swap: bool):
    driver = driver_of(SWAPS, num_host_blocks=32, max_num_seqs=4)
    for request in range(1, 5):
        driver.add(request, [request] * 5, max_tokens=12)
    for _ in range(3):
        driver.step()
    driver.scheduler.preempt(4, swap=swap)
    driver.scheduler.preempt(2, swap=swap)
    driver.step()
    driver.scheduler.preempt(3, swap=swap)

    driver.run()

    resumed = [record.request for record in driver.decided if isinstance(record, Resumed)]
    assert resumed == [2, 4, 3]
    assert driver.preempted == [4, 2, 3]
    assert all(driver.tokens[each] == oracle([each] * 5, 12) for each in range(1, 5))


def test_who_is_pushed_out_after_it_was_placed_leaves_the_plan_with_its_tokens():
    """A long prefill is displaced by a prompt that may then use the tokens given back."""
    driver = driver_of(STRICT, max_num_seqs=1, max_num_batched_tokens=16)
    driver.add(1, [3] * 50, max_tokens=4, priority=5)
    driver.step()
    driver.add(2, [4] * 16, max_tokens=2, priority=0)

    report = driver.step()

    assert report.preempted.tolist() == [1]
    assert driver.plan is not None
    assert driver.plan.requests.tolist() == [2]
    assert driver.plan.num_tokens == 16
    driver.run()
    assert driver.tokens == {1: oracle([3] * 50, 4), 2: oracle([4] * 16, 2)}


def test_mixed_priorities_that_grow_over_block_edges_never_run_and_leave_in_one_step():
    displaced = 0
    for seed in range(12):
        chance = random.Random(seed)
        driver = driver_of(STRICT, num_blocks=9, max_model_len=36, max_num_seqs=3)
        wanted = {}
        for request in range(12):
            prompt = [request + 1] * chance.randint(3, 9)
            driver.add(request, prompt, max_tokens=10, priority=chance.randint(0, 3))
            wanted[request] = oracle(prompt, 10)
            for _ in range(2):
                report = driver.step()
                placed = driver.plan.requests.tolist() if driver.plan else []
                assert not set(report.preempted.tolist()) & set(placed)
        driver.run()
        assert driver.tokens == wanted
        displaced += sum(isinstance(record, Displaced) for record in driver.decided)

    assert displaced > 10


def test_equal_priorities_and_arrival_times_keep_their_order():
    driver = driver_of({"order_admissions": "priority"}, max_num_seqs=2)
    for request in range(0, 400, 2):
        driver.add(request, [request + 1], max_tokens=1, n=2, priority=3)

    driver.run()

    assert driver.admitted == list(range(400))


@pytest.mark.parametrize("limits", [{"max_num_seqs": 1}, {"num_blocks": 5, "max_model_len": 20}])
@pytest.mark.parametrize("displacement", ["nobody", "strict-priority"])
def test_a_better_priority_is_treated_alike_at_the_cap_of_seats_and_of_memory(
    limits: dict[str, object], displacement: str
):
    driver = driver_of({**STRICT, "allow_displacement": displacement}, **limits)
    driver.add(1, [3] * 8, max_tokens=10, priority=10)
    for _ in range(3):
        driver.step()
    driver.add(2, [4] * 12, max_tokens=2, priority=0)
    driver.step()

    assert driver.admitted == ([1] if displacement == "nobody" else [1, 2])
    driver.run()
    assert list(driver.ends) == ([1, 2] if displacement == "nobody" else [2, 1])


def test_who_has_run_and_lost_its_seat_is_not_overtaken_by_newcomers_nor_computed_anew():
    driver = driver_of(OVER_COMMITS, max_num_seqs=2)
    driver.add(1, [3] * 9, max_tokens=12)
    driver.add(2, [4] * 9, max_tokens=12)
    for request in range(3, 9):
        driver.add(request, [request] * 9, max_tokens=2)
    for _ in range(5):
        driver.step()
    driver.scheduler.preempt(2, swap=False)

    driver.run()

    assert driver.admitted[:3] == [1, 2, 2]
    statistics = driver.scheduler.statistics()
    assert statistics.recomputed_tokens < driver.scheduler.config.block_size
    assert all(request in driver.ends for request in range(1, 9))


@pytest.mark.parametrize("flavour", ["recompute", "swap"])
def test_one_missing_block_costs_one_request_its_seat_and_not_a_whole_batch(flavour: str):
    """What a victim frees counts at once. Of these four, one a step grows over a block's edge."""
    driver = driver_of(
        {**OVER_COMMITS, "choose_preemption": flavour},
        num_blocks=8,
        max_model_len=32,
        num_host_blocks=16,
    )
    for request in range(4):
        driver.add(request, [request + 1] * (5 + request), max_tokens=12)
    waves = []
    while driver.scheduler.has_unfinished:
        waves.append(len(driver.step().preempted))

    assert set(waves) == {0, 1}
    for request in range(4):
        assert driver.tokens[request] == oracle([request + 1] * (5 + request), 12)


# Output after preemption


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("swap", [False, True])
def test_preemptions_neither_cut_nor_double_the_output(times: int, swap: bool):
    roomy = driver_of(SWAPS, num_blocks=64, num_host_blocks=64)
    torn = driver_of(SWAPS, num_blocks=64, num_host_blocks=64)
    for driver in (roomy, torn):
        for request in range(4):
            driver.add(request, [5, 6, request + 1], max_tokens=14)
    for _ in range(times):
        for _ in range(3):
            torn.step()
        for request in range(4):
            torn.scheduler.preempt(request, swap=swap)

    roomy.run()
    torn.run()

    assert torn.tokens == roomy.tokens
    assert torn.ends == roomy.ends
    assert [torn.preempted.count(request) for request in range(4)] == [times] * 4
    assert torn.scheduler.statistics().generated_tokens == 4 * 14


# Reference counts


@pytest.mark.parametrize("length", [3, 4, 5, 6])
@pytest.mark.parametrize("stopped", [False, True])
def test_choices_that_end_in_any_order_free_each_block_once(length: int, stopped: bool):
    """The prompt ends one token before a block's edge, on it, and after."""
    for order in permutations(range(4)):
        driver = driver_of(OVER_COMMITS, num_blocks=16, max_model_len=32)
        driver.add(0, [3] * length, max_tokens=20, n=4)
        step_until_admitted(driver, 3)
        for choice in order:
            driver.step()
            leave = driver.scheduler.finish if stopped else driver.scheduler.drop
            leave(choice)
        driver.step()
        assert not driver.scheduler.has_unfinished
        assert unheld(driver) == 16


@pytest.mark.parametrize("length", [11, 12])
@pytest.mark.parametrize("flavour", ["recompute", "swap"])
def test_more_choices_than_blocks_for_their_tails_take_turns(length: int, flavour: str):
    """Eight choices of three blocks in a pool that has five more."""
    driver = driver_of(
        {**OVER_COMMITS, "choose_preemption": flavour},
        num_blocks=8,
        max_model_len=32,
        num_host_blocks=8,
    )
    driver.add(0, [3] * length, max_tokens=9, n=8)

    driver.run()

    for choice in range(8):
        assert driver.tokens[choice] == oracle([3] * length, 9, choice)


@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_the_last_token_on_a_blocks_edge_gives_every_block_back_once(size: int, beyond: int):
    driver = driver_of(
        OVER_COMMITS,
        num_blocks=64 // size,
        block_size=size,
        max_model_len=64,
        max_num_batched_tokens=32,
    )
    for request in range(3):
        driver.add(request, [request + 1] * 5, max_tokens=11 + beyond)

    driver.run()

    assert driver.tokens == {r: oracle([r + 1] * 5, 11 + beyond) for r in range(3)}
    assert unheld(driver) == 64 // size


def test_a_thousand_requests_of_one_prefix_with_aborts_leak_nothing():
    chance = random.Random(0)
    driver = Driver(
        num_blocks=96,
        block_size=16,
        max_model_len=256,
        max_num_seqs=16,
        max_num_batched_tokens=128,
    )
    prefix = [chance.randint(1, 900) for _ in range(200)]
    wanted = {}
    for request in range(1000):
        prompt = prefix + [request % 900 + 1] * chance.randint(0, 20)
        driver.add(request, prompt, max_tokens=2)
        wanted[request] = oracle(prompt, 2)
        if chance.random() < 0.2:
            victim = chance.randrange(request + 1)
            driver.scheduler.drop(victim)
            wanted.pop(victim) if victim in wanted and victim not in driver.ends else None
        if request % 4 == 0:
            driver.step()

    driver.run()

    assert unheld(driver) == 96
    assert len(wanted) > 700
    assert {request: driver.tokens[request] for request in wanted} == wanted


@pytest.mark.parametrize("n", [1, 3])
def test_an_abort_at_any_step_of_a_chunked_prefill_frees_all_within_one_step(n: int):
    """Before the first step, in every chunk, while it decodes, and with its last token."""
    prompt, at_step, ended = list(range(1, 41)), 0, False
    while not ended:
        driver = Driver(max_num_batched_tokens=8, max_num_seqs=4)
        driver.add(0, prompt, max_tokens=3, n=n)
        for _ in range(at_step):
            driver.step()
        ended = not driver.scheduler.has_unfinished
        for choice in range(n):
            driver.scheduler.drop(choice)
        driver.step()
        assert not driver.scheduler.has_unfinished
        assert unheld(driver) == 32
        at_step += 1

    assert at_step > 6


# The prefix cache


def test_an_evicted_block_is_never_found_under_its_old_key():
    first, other = list(range(1, 13)), list(range(100, 116))
    sharing = [*first[:4], 7, 7, 7, 7, 7]
    driver = Driver(num_blocks=6, max_model_len=24)
    for request, prompt in enumerate([first, other, sharing, first, other]):
        driver.add(request, prompt, max_tokens=3)
        driver.run()

    assert driver.cached[2] in (0, 4)
    for request, prompt in enumerate([first, other, sharing, first, other]):
        assert driver.tokens[request] == oracle(prompt, 3)


def test_siblings_of_a_failed_choice_publish_nothing_that_they_share_with_it():
    """Else they did so in one step with two others that compute the same blocks as each other."""
    driver = Driver(max_num_batched_tokens=64)
    prompt, other = list(range(1, 13)), list(range(100, 112))
    driver.runner.fail = {1}
    driver.add(0, prompt, n=3)
    driver.step()
    driver.add(3, other)
    driver.add(4, other)

    driver.run()

    assert driver.ends[1] is FinishReason.FAILED
    assert driver.tokens == {
        0: oracle(prompt, 4, 0),
        2: oracle(prompt, 4, 2),
        3: oracle(other, 4),
        4: oracle(other, 4),
    }
    driver.add(5, [*prompt, 7, 7])
    driver.step()
    assert driver.cached[5] == 0


@pytest.mark.parametrize("length", [16, 32, 48])
def test_a_prompt_of_whole_blocks_that_are_all_cached_still_computes_its_last_token(length: int):
    driver = Driver(num_blocks=8, block_size=16, max_model_len=64)
    prompt = list(range(1, length + 1))
    for request in range(2):
        driver.add(request, prompt)
        driver.run()

    assert driver.cached == {0: 0, 1: length - 16}
    assert driver.tokens[0] == driver.tokens[1] == oracle(prompt, 4)


def test_the_same_prompt_gets_the_same_tokens_cold_warm_and_after_a_reset():
    driver = Driver()
    prompt = list(range(1, 15))
    for request in range(5):
        driver.add(request, prompt, max_tokens=6)
        driver.run()
    driver.add(5, [*prompt[:8], 9, 9], max_tokens=6)
    driver.run()
    driver.scheduler.reset_prefix_cache()
    driver.add(6, prompt, max_tokens=6)
    driver.run()

    assert [driver.cached[request] for request in range(7)] == [0, 12, 12, 12, 12, 8, 0]
    assert all(driver.tokens[request] == oracle(prompt, 6) for request in (0, 1, 2, 3, 4, 6))
    assert driver.tokens[5] == oracle([*prompt[:8], 9, 9], 6)


def test_nothing_of_an_unrelated_prompt_is_reused():
    """Fifty prompts in two lanes; each begins with a token of its own, and the rest is the same."""
    driver = Driver(max_num_seqs=2)
    rest = list(range(2, 16))
    for request in range(50):
        driver.add(request, [500 + request, *rest], max_tokens=3)

    driver.run()

    assert set(driver.cached.values()) == {0}
    for request in range(50):
        assert driver.tokens[request] == oracle([500 + request, *rest], 3)


def test_budgets_hold_however_much_is_found_in_the_cache():
    """Twenty prompts that are nine tenths alike, tokens for three cold ones, and a small pool."""
    driver = driver_of(
        OVER_COMMITS,
        num_blocks=24,
        max_model_len=48,
        max_num_seqs=20,
        max_num_batched_tokens=3 * 40,
    )
    shared, most = list(range(1, 37)), 0
    for request in range(20):
        driver.add(request, [*shared, *[100 + request] * 4], max_tokens=5)
        if request == 0:
            driver.step()
            driver.step()
    while driver.scheduler.has_unfinished:
        driver.step()
        if driver.plan is not None:
            assert driver.plan.num_tokens <= 120
            most = max(most, driver.plan.num_rows)

    assert most > 5
    for request in range(20):
        assert driver.tokens[request] == oracle([*shared, *[100 + request] * 4], 5)


# Choices, cancels, and neighbours


def test_every_request_of_several_choices_gets_each_of_them_once():
    driver = driver_of(OVER_COMMITS, num_blocks=24, max_model_len=48)
    for request in range(0, 60, 3):
        driver.add(request, [request + 1] * 5, max_tokens=7, n=3)

    driver.run()

    assert sorted(driver.ends) == list(range(60))
    for choice in range(60):
        prompt = [choice - choice % 3 + 1] * 5
        assert driver.tokens[choice] == oracle(prompt, 7, choice % 3)


def test_an_abort_twice_after_the_end_in_flight_or_of_nobody_changes_nothing_else():
    driver = Driver()
    driver.add(1, [3] * 5, max_tokens=2)
    driver.add(2, [4] * 5, max_tokens=9)
    driver.add(3, [5] * 5, max_tokens=9)
    while 1 not in driver.ends:
        driver.step()
    for request in (1, 3, 3, 77):
        driver.scheduler.drop(request)
        driver.scheduler.finish(request)
    driver.step()
    driver.scheduler.drop(3)

    driver.run()

    assert driver.ends == {1: FinishReason.LENGTH, 2: FinishReason.LENGTH}
    assert driver.tokens[2] == oracle([4] * 5, 9)


def test_cancelling_who_waits_does_not_stop_who_runs():
    driver = Driver(max_num_seqs=1)
    driver.add(1, [3] * 5, max_tokens=9)
    driver.add(2, [4] * 5)
    driver.step()
    driver.scheduler.drop(2)

    driver.run()

    assert driver.tokens == {1: oracle([3] * 5, 9)}


def test_requests_of_clients_that_are_gone_leave_the_queue_at_once():
    driver = Driver(max_num_seqs=1)
    driver.add(0, [3] * 5, max_tokens=9)
    for request in range(1, 51):
        driver.add(request, [4] * 5)
    driver.step()
    for request in range(1, 51):
        driver.scheduler.drop(request)
    driver.add(51, [5] * 5, max_tokens=2)
    driver.step()
    assert driver.scheduler.statistics().waiting == 1

    driver.run()

    assert driver.admitted == [0, 51]


@pytest.mark.parametrize("n", [1, 3])
def test_decodes_get_a_token_in_every_step_beside_a_big_prefill(n: int):
    driver = Driver(max_num_batched_tokens=16, num_blocks=64, max_model_len=128)
    for request in range(2):
        driver.add(request, [request + 1] * 3, max_tokens=60)
    for _ in range(3):
        driver.step()
    driver.add(2, list(range(1, 101)), max_tokens=3, n=n)
    chunks = 0
    while 2 not in driver.tokens:
        report = driver.step()
        assert set(report.requests.tolist()) >= {0, 1}
        if driver.plan is not None and 2 in driver.plan.requests.tolist():
            chunks += 1
            assert driver.plan.num_tokens <= 16

    assert chunks >= 100 // 14
    driver.run()
    assert driver.tokens[2] == oracle(list(range(1, 101)), 3)


def test_every_row_of_a_batch_goes_by_its_own_settings():
    alone = [oracle([request + 1] * 3, 12) for request in range(6)]
    driver = Driver(eos_token_ids=frozenset({alone[0][4], alone[1][4]}), max_num_batched_tokens=64)
    driver.add(0, [1] * 3, max_tokens=12)
    driver.add(1, [2] * 3, max_tokens=12, ignore_eos=True)
    driver.add(2, [3] * 3, max_tokens=12, stop_token_ids=frozenset({alone[2][6]}))
    driver.add(3, [4] * 3, max_tokens=7, stop_token_ids=frozenset({alone[2][6]}))
    driver.add(4, [5] * 3, max_tokens=12, credit=12, cache_salt="x")
    driver.add(5, [6] * 3, max_tokens=12, deadline_s=0.035)

    driver.run()

    lengths = [5, 12, 7, 7, 12, 3]
    for request, length in enumerate(lengths):
        assert driver.tokens[request] == alone[request][:length]
    assert [driver.ends[request].name for request in range(6)] == [
        "EOS",
        "LENGTH",
        "STOP_TOKEN",
        "LENGTH",
        "LENGTH",
        "DEADLINE",
    ]


# After the pressure


def light_load(driver: Driver, first: int) -> int:
    """The steps that sixteen short requests take, all sent at once."""
    before = driver.scheduler.statistics().steps
    for request in range(first, first + 16):
        driver.add(request, [request % 900 + 1] * 5, max_tokens=6)
    driver.run()
    return driver.scheduler.statistics().steps - before


@pytest.mark.parametrize("reservation", ["none", "no-evict", "new-token-ratio", "past-future"])
def test_a_wave_of_preemptions_leaves_the_throughput_as_it_was(reservation: str):
    driver = driver_of({"reserve_blocks": reservation}, num_blocks=40)
    baseline = light_load(driver, 100)
    for request in range(8):
        driver.add(request, [request + 1] * 3, max_tokens=60)
    for _ in range(30):
        driver.step()
        for request in range(8):
            driver.scheduler.preempt(request, swap=False)
    driver.run()
    assert driver.preempted

    assert light_load(driver, 200) == baseline


def test_what_a_wave_of_preemptions_taught_fades_while_others_run_on():
    """The reserved share is as low again as before, although the engine was never idle."""
    load = SteadyLoad()
    load.run(DECAY_STEPS + 60)
    relaxed = load.admitted_together()
    load.run_into_preemption()
    strained = load.admitted_together()
    load.run(DECAY_STEPS + 60)

    assert load.admitted_together() == relaxed > strained


class SteadyLoad:
    """One request runs at any time; others come and go beside it."""

    def __init__(self) -> None:
        self.driver, self.next_request = Driver(num_blocks=48), 0
        self.steady = self.add(3, 60)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if len(self.driver.tokens.get(self.steady, [])) == 50:
                self.steady = self.add(3, 60)
            self.driver.step()

    def add(self, length: int, max_tokens: int) -> int:
        self.next_request += 1
        prompt = [self.next_request % 900 + 1] * length
        self.driver.add(self.next_request, prompt, max_tokens)
        return self.next_request

    def admitted_together(self) -> int:
        """How many of seven that come at once get a seat at once."""
        added = [self.add(4, 50) for _ in range(7)]
        self.run(1)
        together = sum(request in self.driver.admitted for request in added)
        self.leave(added)
        return together

    def run_into_preemption(self) -> None:
        added = [self.add(4, 60) for _ in range(7)]
        while not self.driver.preempted:
            self.run(1)
        self.leave(added)

    def leave(self, requests: list[int]) -> None:
        for request in requests:
            self.driver.scheduler.drop(request)
        self.run(1)
