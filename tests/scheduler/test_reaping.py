"""Outcomes applied, and who has to go: ends of every kind, deadlines in every state."""

import numpy as np
import pytest

from cadenza.policies import RequestColumns, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.profile import Profile
from cadenza.scheduler.decisions import Finished
from cadenza.scheduler.prefix import block_key
from cadenza.scheduler.states import FinishReason
from cadenza.testing import Driver, oracle
from cadenza.testing.driver import STEP_S

NEVER = float("inf")


def after(driver: Driver, steps: int) -> float:
    """A deadline that passes just before the given step from now."""
    return driver.now_s + (steps - 0.5) * STEP_S


def finished(driver: Driver, request: int) -> Finished:
    record = driver.scheduler.timeline(request)[-1]
    assert isinstance(record, Finished)
    return record


def ends_of(driver: Driver, report: object) -> list[tuple[int, int, int, int]]:
    return list(
        zip(
            report.requests.tolist(),
            report.tokens.tolist(),
            report.finished.tolist(),
            report.samples.tolist(),
            strict=True,
        )
    )


@pytest.mark.parametrize("steps", range(1, 9))
def test_a_deadline_ends_a_request_in_the_first_step_after_it(steps: int):
    """In mid-prefill up to the third step, while it decodes later; tokens until then count."""
    prompt = list(range(1, 21))
    driver = Driver(max_num_batched_tokens=8, max_num_seqs=4)
    driver.add(1, prompt, max_tokens=20, deadline_s=after(driver, steps))
    for _ in range(steps - 1):
        driver.step()
    assert driver.ends == {}

    report = driver.step()

    # Three steps prefill, the first token is in the fourth step's report
    got = max(0, steps - 3)
    assert driver.tokens.get(1, []) == oracle(prompt, got)
    assert ends_of(driver, report)[-1] == (1, -1, FinishReason.DEADLINE.value, -1)
    assert driver.ends == {1: FinishReason.DEADLINE}
    assert finished(driver, 1).generated_tokens == got
    assert driver.plan is None
    driver.run()


def test_a_deadline_at_the_very_time_of_a_step_has_passed():
    driver = Driver()
    driver.add(1, [1, 2], deadline_s=driver.now_s + STEP_S)

    driver.step()

    assert driver.ends == {1: FinishReason.DEADLINE}


def test_the_last_token_wins_against_a_deadline_of_the_same_step():
    driver = Driver()
    driver.add(1, [1, 2], max_tokens=1, deadline_s=after(driver, 2))

    driver.run()

    assert driver.ends == {1: FinishReason.LENGTH}
    assert driver.tokens[1] == oracle([1, 2], 1)


def test_a_deadline_ends_a_request_that_was_never_admitted():
    driver = Driver(max_num_seqs=1)
    driver.add(1, [1, 2], max_tokens=9)
    driver.add(2, [3, 4], deadline_s=after(driver, 4))

    driver.run()

    assert driver.admitted == [1]
    assert driver.ends == {1: FinishReason.LENGTH, 2: FinishReason.DEADLINE}
    assert finished(driver, 2).generated_tokens == 0


@pytest.mark.parametrize("swap", [True, False])
def test_a_deadline_ends_a_preempted_request_and_frees_what_it_had_on_the_host(swap: bool):
    """Its reader has no credit, so that it does not come back before."""
    driver = Driver(num_host_blocks=4)
    driver.add(1, [1] * 6, max_tokens=9, credit=2, deadline_s=after(driver, 6))
    driver.step()
    driver.step()
    driver.scheduler.preempt(1, swap=swap)
    driver.step()
    statistics = driver.scheduler.statistics()
    assert (statistics.swapped, statistics.free_host_blocks) == ((1, 2) if swap else (0, 4))

    driver.run()

    assert driver.ends == {1: FinishReason.DEADLINE}
    assert driver.admitted == [1]
    assert driver.tokens[1] == oracle([1] * 6, 2)
    driver.step()
    assert driver.scheduler.statistics().free_host_blocks == 4


def test_a_deadline_ends_a_parked_request():
    driver = Driver()
    driver.add(1, [1, 2], max_tokens=9, credit=2, deadline_s=after(driver, 8))
    while driver.scheduler.has_work:
        driver.step()
    assert driver.scheduler.statistics().parked == 1
    assert driver.scheduler.next_deadline_s == after(driver, 8) - driver.now_s
    while not driver.ends:
        driver.step()

    assert driver.tokens[1] == oracle([1, 2], 2)
    assert driver.ends == {1: FinishReason.DEADLINE}
    assert driver.now_s == pytest.approx(8 * STEP_S)
    statistics = driver.scheduler.statistics()
    assert (statistics.parked, statistics.running) == (0, 0)
    assert not driver.scheduler.has_unfinished


@pytest.mark.parametrize("steps", [1, 2])
def test_a_deadline_ends_all_choices_of_a_prompt_that_is_not_complete(steps: int):
    driver = Driver(max_num_batched_tokens=8, max_num_seqs=4)
    driver.add(0, [50], max_tokens=3)
    driver.add(1, list(range(1, 30)), n=3, deadline_s=after(driver, steps))
    driver.scheduler.drop(2)

    driver.run()

    assert driver.ends == {
        0: FinishReason.LENGTH,
        1: FinishReason.DEADLINE,
        3: FinishReason.DEADLINE,
    }


def test_a_deadline_ends_all_choices_that_run():
    driver = Driver()
    driver.add(1, [1, 2], n=2, max_tokens=9, deadline_s=after(driver, 4))
    driver.run()

    for choice in range(2):
        assert driver.tokens[1 + choice] == oracle([1, 2], 3, choice)
        assert driver.ends[1 + choice] is FinishReason.DEADLINE


def test_deadlines_of_one_step_are_reported_in_order_of_arrival():
    driver = Driver(max_num_seqs=2)
    for request in (7, 3, 5):
        driver.add(request, [request], deadline_s=after(driver, 1))

    report = driver.step()

    assert report.requests.tolist() == [7, 3, 5]


def test_a_deadline_can_be_moved_in_both_directions_and_taken_away():
    driver = Driver()
    for request in (1, 2, 3):
        driver.add(request, [request], max_tokens=10, deadline_s=after(driver, 5))
    driver.scheduler.set_deadline(1, after(driver, 3))
    driver.scheduler.set_deadline(2, after(driver, 7))
    driver.scheduler.set_deadline(3, NEVER)
    driver.scheduler.set_deadline(99, 0.0)

    driver.run()

    assert {request: len(driver.tokens[request]) for request in (1, 2, 3)} == {1: 2, 2: 6, 3: 10}
    assert driver.ends == {
        1: FinishReason.DEADLINE,
        2: FinishReason.DEADLINE,
        3: FinishReason.LENGTH,
    }


def test_the_scheduler_says_when_the_next_deadline_may_pass():
    driver = Driver()
    assert driver.scheduler.next_deadline_s == NEVER
    driver.add(1, [1], max_tokens=20, deadline_s=0.095)
    driver.add(2, [2], max_tokens=20, deadline_s=0.035)
    driver.add(3, [3], max_tokens=20)
    assert driver.scheduler.next_deadline_s == 0.035
    while 2 not in driver.ends:
        driver.step()
    assert driver.scheduler.next_deadline_s == 0.095

    driver.scheduler.set_deadline(3, 0.055)
    assert driver.scheduler.next_deadline_s == 0.055

    driver.run()
    assert driver.scheduler.next_deadline_s == NEVER


def test_a_late_cancel_of_who_missed_its_deadline_changes_nothing():
    driver = Driver()
    driver.add(1, [1], deadline_s=after(driver, 1))
    driver.step()
    driver.scheduler.drop(1)

    assert not driver.scheduler.has_unfinished


class Listener:
    """Remembers whom it was told of: (request, generated tokens)."""

    def __init__(self) -> None:
        type(self).told = []

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> None:
        return None

    @hookimpl
    def on_finished(self, finished: RequestColumns, step: StepView) -> None:
        pairs = zip(finished.request.tolist(), finished.generated_tokens.tolist(), strict=True)
        self.told.extend(pairs)


def test_policies_learn_of_every_end_but_a_cancel():
    profile = Profile({"order_admissions": "listener"}, {**BUILTIN, "listener": Listener})
    driver = Driver(profile)
    driver.runner.fail = {5}
    driver.add(1, [1], max_tokens=2)
    driver.add(2, [2], max_tokens=9)
    driver.add(3, [3], max_tokens=9)
    driver.add(4, [4], max_tokens=9, deadline_s=after(driver, 6))
    driver.add(5, [5], max_tokens=9)
    for _ in range(3):
        driver.step()
    driver.scheduler.drop(2)
    driver.scheduler.finish(3)

    driver.run()

    assert driver.decisions.faults == 0
    assert sorted(Listener.told) == [(1, 2), (3, 3), (4, 5), (5, 0)]
    assert finished(driver, 2).reason is FinishReason.ABORTED
    assert finished(driver, 3).reason is FinishReason.STOPPED


def test_a_stopped_request_holds_nothing_after_the_next_step():
    driver = Driver()
    driver.add(1, [1, 2], max_tokens=20)
    for _ in range(4):
        driver.step()
    driver.scheduler.finish(1)

    report = driver.step()

    assert report.tokens.tolist() == oracle([1, 2], 4)[3:], "the token in flight is still shown"
    assert driver.plan is None
    assert driver.ends == {}, "the front knows already"
    assert not driver.scheduler.has_unfinished


def test_each_choice_ends_by_its_own_tokens():
    prompt = [5, 6]
    stop = {choice: oracle(prompt, 8, choice)[2 + choice] for choice in range(3)}
    driver = Driver(eos_token_ids=frozenset({stop[0]}))
    driver.add(1, prompt, n=4, max_tokens=8, stop_token_ids=frozenset({stop[1], stop[2]}))

    driver.run()

    for choice in range(3):
        assert driver.tokens[1 + choice] == oracle(prompt, 3 + choice, choice)
    assert driver.tokens[4] == oracle(prompt, 8, 3)
    assert driver.ends == {
        1: FinishReason.EOS,
        2: FinishReason.STOP_TOKEN,
        3: FinishReason.STOP_TOKEN,
        4: FinishReason.LENGTH,
    }


def test_samples_name_the_place_of_a_token_in_the_outcome():
    """Two groups and a decode: six samples, of which one failed and one ended."""
    driver = Driver()
    driver.add(1, [1], max_tokens=9)
    driver.step()
    driver.add(2, [2, 2], n=3, max_tokens=1)
    driver.add(5, [5, 5], n=2, max_tokens=4)
    driver.runner.fail = {6}
    driver.step()
    outcome = driver.outcome
    assert outcome is not None

    report = driver.step()

    assert report.requests.tolist() == [1, 2, 3, 4, 5, 6]
    assert report.samples.tolist() == [0, 1, 2, 3, 4, 5]
    assert report.tokens.tolist()[:5] == outcome.tokens.tolist()[:5]
    assert report.tokens[5] == -1
    length, failed = FinishReason.LENGTH.value, FinishReason.FAILED.value
    assert report.finished.tolist() == [0, length, length, length, 0, failed]


def test_what_a_failed_choice_shared_is_never_found_again_but_the_others_go_on():
    prompt = list(range(1, 10))
    driver = Driver()
    driver.runner.fail = {2}
    driver.add(1, prompt, n=3, max_tokens=8)
    driver.step()
    driver.step()
    driver.runner.fail = set()
    driver.add(4, prompt, max_tokens=2)
    driver.run()

    assert driver.ends[2] is FinishReason.FAILED
    assert driver.tokens[1] == oracle(prompt, 8, 0)
    assert driver.tokens[3] == oracle(prompt, 8, 2)
    assert driver.tokens[4] == oracle(prompt, 2)


def test_a_failed_row_keeps_nobody_from_publishing_the_same_prompt():
    """Both compute it in one pass; what the failed one has is never offered at all."""
    prompt = list(range(1, 10))
    driver = Driver(max_num_batched_tokens=64)
    driver.runner.fail = {1}
    driver.add(1, prompt, max_tokens=1)
    driver.add(2, prompt, max_tokens=1)
    driver.run()
    driver.add(3, prompt, max_tokens=2)
    driver.run()

    assert driver.ends[1] is FinishReason.FAILED
    assert driver.cached == {1: 0, 2: 0, 3: 8}
    assert driver.tokens[3] == oracle(prompt, 2)


def test_a_row_does_not_publish_again_what_it_shared_with_a_failed_one():
    """Its publications end with a block that the failed one held, so it would begin anew."""
    prompt = list(range(1, 14))
    driver = Driver()
    driver.add(1, prompt, max_tokens=30)
    driver.step()
    driver.runner.fail = {2}
    driver.add(2, prompt)
    for _ in range(2):
        driver.step()
    assert driver.ends == {2: FinishReason.FAILED}
    for _ in range(6):  # 1 fills its fourth block
        driver.step()
    driver.add(3, prompt)
    driver.step()

    assert driver.cached == {1: 0, 2: 12, 3: 0}
    driver.run()
    assert driver.tokens[1] == oracle(prompt, 30)


@pytest.mark.parametrize("n", [1, 2])
def test_equal_prompts_prefilled_together_are_published_once(n: int):
    """Each keeps what it computed; the next finds the first one's blocks."""
    prompt = list(range(1, 10))
    driver = Driver(max_num_batched_tokens=64)
    driver.add(1, prompt, n=n, max_tokens=6)
    driver.add(5, prompt, n=n, max_tokens=12)
    driver.step()
    assert driver.plan is not None
    first, second = driver.plan.layout().block_tables[:, :2].tolist()
    assert not set(first) & set(second)
    driver.step()
    driver.add(9, prompt, max_tokens=2)
    driver.step()

    assert driver.cached[9] == 8
    assert driver.plan is not None
    row = driver.plan.requests.tolist().index(9)
    assert driver.plan.layout().block_tables[row, :2].tolist() == first
    driver.run()
    for choice in range(n):
        assert driver.tokens[1 + choice] == oracle(prompt, 6, choice)
        assert driver.tokens[5 + choice] == oracle(prompt, 12, choice)


def test_a_row_takes_over_when_the_blocks_it_followed_were_evicted():
    """Its own blocks were duplicates; once the others are gone they are what can be found."""
    prompt = list(range(1, 10))
    driver = Driver(num_blocks=16)
    driver.add(1, prompt, max_tokens=2)
    driver.add(2, prompt, max_tokens=24)
    for _ in range(3):
        driver.step()
    assert driver.ends == {1: FinishReason.LENGTH}
    driver.add(3, [90] * 40, max_tokens=1)  # ten blocks: those of request 1 are evicted
    for _ in range(12):
        driver.step()
    driver.add(4, [*prompt, *driver.tokens[2][:8]], max_tokens=1)

    driver.run()

    assert driver.cached[4] == 16
    assert driver.tokens[2] == oracle(prompt, 24)
    assert driver.tokens[4] == oracle([*prompt, *driver.tokens[2][:8]], 1)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The tokens of each block whose key was computed, as it comes."""
    blocks: list[bytes] = []

    def counting(parent: bytes, tokens: bytes) -> bytes:
        blocks.append(tokens)
        return block_key(parent, tokens)

    monkeypatch.setattr("cadenza.scheduler.prefix.block_key", counting)
    return blocks


def test_what_a_row_generates_is_published_without_hashing_it(hashed: list[bytes]):
    """And found all the same, by who hashes it to look for it."""
    driver = Driver()
    driver.add(1, list(range(1, 10)), max_tokens=20)
    driver.run()
    assert len(hashed) == 2, "the full blocks of the prompt, when it arrived"

    driver.add(2, [*range(1, 10), *driver.tokens[1]], max_tokens=1)
    driver.run()

    assert driver.cached[2] == 28
    assert len(hashed) == 2 + 7


def test_of_several_choices_all_but_the_first_hash_the_block_in_which_they_part(
    hashed: list[bytes],
):
    prompt = list(range(1, 10))
    driver = Driver()
    driver.add(1, prompt, max_tokens=20, n=3)
    driver.run()

    assert len(hashed) == 2 + 2
    for choice in (1, 2, 3):
        driver.add(10 * choice, [*prompt, *driver.tokens[choice]], max_tokens=1)
    driver.run()
    assert [driver.cached[10 * choice] for choice in (1, 2, 3)] == [28] * 3


def test_what_somebody_waits_for_is_hashed_and_found_as_it_is_generated(hashed: list[bytes]):
    """Here what a request goes on to ask that waits for the only seat meanwhile."""
    prompt = list(range(1, 9))
    text = [*prompt, *oracle(prompt, 16)]
    driver = Driver(max_num_seqs=1)
    driver.add(1, prompt, max_tokens=24)
    driver.step()
    driver.add(2, text[:21], max_tokens=1)
    arrived = len(hashed)
    driver.run()

    assert driver.cached[2] == 20
    assert len(hashed) == arrived + 4, "what lies behind it nobody waits for"
    assert driver.tokens[2] == oracle(text[:21], 1)


def constant_key(*_: object) -> bytes:
    return b"\x07" * 32


def test_equal_keys_of_all_blocks_cost_hits_but_never_a_token(monkeypatch: pytest.MonkeyPatch):
    """A key is a hint: tokens and place are compared before anybody shares."""
    monkeypatch.setattr("cadenza.scheduler.prefix.block_key", constant_key)
    chosen = {"reserve_blocks": "none", "choose_preemption": "swap"}
    driver = Driver(Profile(chosen), num_blocks=14, max_model_len=40, num_host_blocks=10)
    prompts = {
        0: [1] * 9,
        3: [1] * 9,
        4: [1, 1, 1, 1, 2, 2, 2, 2, 3],
        5: [2] * 9,
        6: [1] * 17,
        7: [2] * 9,
    }
    for request, prompt in prompts.items():
        salt = "salt" if request == 7 else ""
        driver.add(request, prompt, max_tokens=16, n=3 if request == 0 else 1, cache_salt=salt)
        driver.step()
        driver.step()
    for swap in (True, False, True):
        for request in (0, 1, 4, 5, 6):
            driver.scheduler.preempt(request, swap=swap)
        for _ in range(3):
            driver.step()
    driver.run()

    assert driver.preempted
    for request, prompt in prompts.items():
        for choice in range(3 if request == 0 else 1):
            assert driver.tokens[request + choice] == oracle(prompt, 16, choice)


def test_generated_tokens_are_those_that_were_sampled():
    driver = Driver()
    driver.runner.fail = {4}
    driver.add(1, [1, 2], n=3, max_tokens=5)
    driver.add(4, [4], max_tokens=5)
    driver.run()

    statistics = driver.scheduler.statistics()
    assert statistics.generated_tokens == 3 * 5
    assert statistics.computed_tokens == 2 + 3 * 4 + 1
    assert np.isclose(driver.now_s, STEP_S * statistics.steps)
