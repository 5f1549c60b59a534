"""Other policies take over between two steps."""

import gc
import weakref

import numpy as np

from cadenza.policies import RequestColumns, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.decisions import Decisions
from cadenza.policies.profile import OBSERVER, Profile
from cadenza.testing import Driver, oracle


class Failing:
    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
        raise ValueError


class Listener:
    """Writes down what it is told of arrivals: request, output so far, resumed, parked."""

    told: list[list[tuple[int, int, bool, bool]]]

    def __init__(self) -> None:
        type(self).told = []

    @hookimpl
    def on_arrived(self, arrived: RequestColumns, step: StepView) -> None:
        columns = (arrived.request, arrived.generated_tokens, arrived.resumed, arrived.parked)
        self.told.append(list(zip(*(each.tolist() for each in columns), strict=True)))


def decisions(**chosen: str) -> Decisions:
    """Defaults but for what is chosen; the mines are at hand."""
    policies = {**BUILTIN, "failing": Failing, "listener": Listener}
    return Decisions(Profile(chosen, policies))


def test_the_next_step_follows_the_new_order():
    driver = Driver(max_num_seqs=1)
    for request in range(3):
        driver.add(request, [1], priority=-request, max_tokens=1)
    driver.step()
    driver.scheduler.use(decisions(order_admissions="priority"))
    driver.run()

    assert driver.admitted == [0, 2, 1]


def test_the_new_policies_are_told_of_everybody_as_resumed():
    """One is parked, one runs, one waits that has come since the last step, and one comes after."""
    driver = Driver(max_num_seqs=2)
    driver.add(0, [1, 2], max_tokens=20, credit=1)
    driver.add(1, [3, 4], max_tokens=20)
    for _ in range(3):
        driver.step()
    driver.add(2, [7], max_tokens=20)
    driver.scheduler.use(decisions(**{OBSERVER: "listener"}))
    driver.add(3, [8], max_tokens=20)
    driver.step()
    driver.step()

    assert Listener.told == [
        [
            (0, 1, True, True),
            (1, 2, True, False),
            (2, 0, True, False),
            (3, 0, False, False),
        ]
    ]


def test_nobody_is_told_of_again_by_policies_that_came_earlier():
    driver = Driver()
    driver.scheduler.use(decisions(**{OBSERVER: "listener"}))
    driver.add(0, [1], max_tokens=4)
    driver.step()
    driver.scheduler.use(decisions())
    driver.step()
    driver.run()

    assert Listener.told == [[(0, 0, False, False)]]


def test_a_request_gets_its_tokens_whatever_is_swapped_under_it():
    driver = Driver(num_blocks=8, max_model_len=32)
    for request in range(6):
        driver.add(request, [request + 1] * 5, max_tokens=8, ignore_eos=True)
    orders = ["priority", "fcfs", "prefix-aware", "fair-share", "failing"]
    while driver.scheduler.has_unfinished:
        driver.step()
        driver.scheduler.use(decisions(order_admissions=orders[driver.plan is None]))
        orders.append(orders.pop(0))

    for request in range(6):
        assert driver.tokens[request] == oracle([request + 1] * 5, 8)


def test_faults_of_former_policies_still_count():
    driver = Driver()
    first = decisions(order_admissions="failing")
    driver.scheduler.use(first)
    for request in range(2):
        driver.add(request, [1], max_tokens=1)
        driver.step()
    driver.scheduler.use(decisions(order_admissions="failing"))
    driver.add(2, [1], max_tokens=1)
    driver.step()
    driver.scheduler.use(first)
    driver.run()

    assert first.faults == 2
    assert driver.scheduler.statistics().policy_faults == 3


def test_overtakes_are_counted_as_the_new_order_counts_them():
    """A later arrival of another tenant is no overtake under an order that is fair among them."""
    counts: list[int] = []

    class FairAndLast:
        overtakes_within_tenant = True

        @hookimpl
        def order_admissions(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
            counts.append(int(waiting.overtakes[0]))
            return -waiting.arrival.astype(float)

    policies = {**BUILTIN, "fair": FairAndLast, "last": type("Last", (FairAndLast,), {})}
    policies["last"].overtakes_within_tenant = False
    driver = Driver(Profile({"order_admissions": "last"}, policies), max_num_seqs=1)
    driver.add(0, [1], max_tokens=1, tenant="a")
    for request in range(1, 5):
        driver.add(request, [1], max_tokens=1, tenant="b")
        if request == 3:
            driver.scheduler.use(Decisions(Profile({"order_admissions": "fair"}, policies)))
        driver.step()
    driver.run()

    assert counts == [0, 1, 2, 2, 2]


def test_nobody_keeps_the_former_policies():
    driver = Driver(num_blocks=6, max_model_len=24)
    for request in range(4):
        driver.add(request, [request + 1] * 7, max_tokens=12)
    driver.step()
    driver.scheduler.preempt(0, swap=False)
    driver.step()
    former = weakref.ref(driver.decisions)
    driver.decisions = decisions()
    driver.scheduler.use(driver.decisions)
    gc.collect()

    assert former() is None
    driver.run()


def test_new_policies_predict_for_those_that_are_here_and_have_no_prediction():
    asked: list[list[int]] = []

    class Predicts:
        @hookimpl
        def predict_lengths(self, arrived: RequestColumns, step: StepView) -> np.ndarray:
            asked.append(arrived.request.tolist())
            return np.where(arrived.request == 1, 0.0, 5.0)

    def predicting() -> Decisions:
        return Decisions(Profile({"predict_lengths": "mine"}, {**BUILTIN, "mine": Predicts}))

    driver = Driver()
    driver.add(0, [1], max_tokens=9, predicted_tokens=3)
    for request in (1, 2):
        driver.add(request, [1], max_tokens=9)
    driver.step()
    driver.scheduler.use(predicting())
    driver.add(3, [1], max_tokens=9)
    driver.step()
    driver.scheduler.use(predicting())
    driver.run()

    assert asked == [[1, 2, 3], [1]]


def test_a_policy_that_comes_back_changes_nothing_for_others():
    """It alone is told of the others, as resumed; who predicts has been asked about them."""
    asked: list[list[int]] = []
    marked: list[list[bool]] = []

    class Predicts:
        @hookimpl
        def predict_lengths(self, arrived: RequestColumns, step: StepView) -> np.ndarray:
            asked.append(arrived.request.tolist())
            return np.zeros(len(arrived))

    class Reserves:
        @hookimpl
        def reserve_blocks(
            self, running: RequestColumns, candidates: RequestColumns, step: StepView
        ) -> None:
            marked.append(running.resumed.tolist())

    policies = {**BUILTIN, "predicts": Predicts, "listener": Listener, "mine": Reserves}
    chosen = {"predict_lengths": "predicts", OBSERVER: "listener", "reserve_blocks": "mine"}
    driver = Driver(Profile(chosen, policies))
    for request in (0, 1):
        driver.add(request, [1], max_tokens=9)
    driver.step()
    Listener.told.clear()
    driver.decisions.newcomers = frozenset({"listener"})
    driver.scheduler.use(driver.decisions, takes_over=False)
    driver.step()
    driver.add(2, [1], max_tokens=9)
    driver.run()

    assert [(request, resumed) for request, _, resumed, _ in Listener.told[0]] == [
        (0, True),
        (1, True),
    ]
    assert asked == [[0, 1], [2]]
    assert not any(any(each) for each in marked)
    assert any(marked)


def test_who_predicts_and_comes_back_is_asked_about_everybody():
    asked: list[list[int]] = []

    class Predicts:
        @hookimpl
        def predict_lengths(self, arrived: RequestColumns, step: StepView) -> np.ndarray:
            asked.append(arrived.request.tolist())
            return np.zeros(len(arrived))

    driver = Driver(Profile({"predict_lengths": "mine"}, {**BUILTIN, "mine": Predicts}))
    driver.add(0, [1], max_tokens=9)
    driver.step()
    driver.decisions.newcomers = frozenset({"mine"})
    driver.scheduler.use(driver.decisions, takes_over=False)
    driver.run()

    assert asked == [[0], [0]]
