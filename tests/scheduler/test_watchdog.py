"""The watchdog: when nothing moves for too long, the first in line fails and the others go on.

Nothing in the scheduler can stall, so admission is taken out here by force.
"""

import numpy as np
import pytest

from cadenza.policies import RequestColumns, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.profile import Profile
from cadenza.scheduler.admission import Admission
from cadenza.scheduler.decisions import Finished, Stalled
from cadenza.scheduler.states import FinishReason
from cadenza.testing import Driver, oracle

PATIENCE = 5


@pytest.fixture
def nobody_enters(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Undo it with `undo`."""
    monkeypatch.setattr(Admission, "run", lambda *_: None)
    return monkeypatch


def stalled(driver: Driver) -> list[tuple[int, int]]:
    return [(each.request, each.steps) for each in driver.decided if isinstance(each, Stalled)]


def steps(driver: Driver, num: int) -> None:
    for _ in range(num):
        driver.step()


@pytest.mark.usefixtures("nobody_enters")
def test_the_head_fails_after_that_many_steps_without_progress():
    driver = Driver(stall_steps=PATIENCE)
    driver.add(1, [1, 2])
    driver.add(2, [3])
    # The first step logs arrivals, so that it counts as progress
    steps(driver, 1 + PATIENCE + 1)
    assert driver.ends == {}

    report = driver.step()

    assert driver.ends == {1: FinishReason.FAILED}
    assert (report.tokens.tolist(), report.samples.tolist()) == ([-1], [-1])
    assert stalled(driver) == [(1, PATIENCE + 1)]
    kinds = [type(each) for each in driver.scheduler.timeline(1)]
    assert kinds[-2:] == [Stalled, Finished]
    assert driver.scheduler.statistics().waiting == 1


@pytest.mark.usefixtures("nobody_enters")
def test_the_next_in_line_gets_as_long_as_the_first():
    driver = Driver(stall_steps=PATIENCE)
    for request in (4, 2, 3):
        driver.add(request, [request])

    driver.run()

    assert [request for request, _ in stalled(driver)] == [4, 2, 3], "by arrival"
    assert set(driver.ends.values()) == {FinishReason.FAILED}
    records = [each.step_id for each in driver.decided if isinstance(each, Stalled)]
    assert len(set(np.diff(records).tolist())) == 1


@pytest.mark.usefixtures("nobody_enters")
def test_all_choices_of_the_head_fail_together():
    driver = Driver(stall_steps=PATIENCE)
    driver.add(1, [1], n=3)
    driver.run()

    assert driver.ends == dict.fromkeys((1, 2, 3), FinishReason.FAILED)
    assert stalled(driver) == [(choice, PATIENCE + 1) for choice in (1, 2, 3)]


@pytest.mark.usefixtures("nobody_enters")
def test_who_waits_for_credit_is_not_the_head():
    driver = Driver(stall_steps=PATIENCE)
    driver.add(1, [1], credit=0)
    driver.add(2, [2])
    while 2 not in driver.ends:
        driver.step()

    assert stalled(driver) == [(2, PATIENCE + 1)]
    steps(driver, 3 * PATIENCE)
    assert stalled(driver) == [(2, PATIENCE + 1)], "to wait for credit is no stall"


def test_progress_starts_the_count_again(nobody_enters: pytest.MonkeyPatch):
    driver = Driver(stall_steps=PATIENCE)
    driver.add(1, [1, 2])
    steps(driver, PATIENCE + 1)
    nobody_enters.undo()
    driver.step()
    assert driver.admitted == [1]

    driver.run()

    assert driver.ends == {1: FinishReason.LENGTH}
    assert stalled(driver) == []


def test_after_a_stall_the_others_go_on(nobody_enters: pytest.MonkeyPatch):
    driver = Driver(stall_steps=PATIENCE)
    driver.add(1, [1, 2])
    driver.add(2, [3, 4])
    while not driver.ends:
        driver.step()
    nobody_enters.undo()

    driver.run()

    assert driver.ends == {1: FinishReason.FAILED, 2: FinishReason.LENGTH}
    assert driver.tokens == {2: oracle([3, 4], 4)}


@pytest.mark.usefixtures("nobody_enters")
@pytest.mark.parametrize("how", ["drop", "finish", "deadline", "credit"])
@pytest.mark.parametrize("others", [0, 1])
def test_the_head_may_leave_in_the_very_step_in_which_it_would_fail(how: str, others: int):
    driver = Driver(stall_steps=PATIENCE)
    driver.add(1, [1, 2], credit=1)
    for request in range(2, 2 + others):
        driver.add(request, [request])
    steps(driver, 1 + PATIENCE + 1)
    match how:
        case "drop" | "finish":
            getattr(driver.scheduler, how)(1)
        case "deadline":
            driver.scheduler.set_deadline(1, driver.now_s)
        case "credit":
            driver.scheduler.grant(1, -1)

    driver.step()

    assert 1 not in [request for request, _ in stalled(driver)]
    driver.scheduler.drop(1)
    driver.run()
    assert not driver.scheduler.has_unfinished


class KeepOut:
    """Never lets anybody in."""

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
        return np.full(len(waiting), np.inf)


def test_a_policy_that_keeps_everybody_out_while_something_runs_stalls_nobody():
    """They enter one after another, whenever nothing runs."""
    profile = Profile({"order_admissions": "keep-out"}, {**BUILTIN, "keep-out": KeepOut})
    driver = Driver(profile, stall_steps=2)
    for request in range(4):
        driver.add(request, [request + 1], max_tokens=12)

    driver.run()

    assert stalled(driver) == []
    for request in range(4):
        assert driver.tokens[request] == oracle([request + 1], 12)


def test_a_policy_cannot_keep_everybody_out_while_only_parked_rows_have_seats():
    profile = Profile({"order_admissions": "keep-out"}, {**BUILTIN, "keep-out": KeepOut})
    driver = Driver(profile, stall_steps=2)
    driver.add(1, [1], credit=1)
    while driver.scheduler.has_work:
        driver.step()
    driver.add(2, [2])
    while driver.scheduler.has_work:
        driver.step()

    assert driver.ends == {2: FinishReason.LENGTH}
    assert driver.scheduler.statistics().parked == 1


class WantsAll:
    """Wants more blocks kept free than there are."""

    @hookimpl
    def reserve_blocks(
        self, running: RequestColumns, candidates: RequestColumns, step: StepView
    ) -> np.ndarray:
        return np.full(len(candidates) + 1, 10**6)


def test_a_reservation_beyond_the_pool_stalls_nobody():
    profile = Profile({"reserve_blocks": "wants-all"}, {**BUILTIN, "wants-all": WantsAll})
    driver = Driver(profile, stall_steps=2)
    for request in range(3):
        driver.add(request, [request + 1], max_tokens=3)

    driver.run()

    assert stalled(driver) == []
    assert driver.admitted == [0, 1, 2]
