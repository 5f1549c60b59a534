"""One test a hook (enforced): what the core does with the answer, seen from a policy's side."""

import inspect

import numpy as np
import pytest

from cadenza.policies import (
    ArrivalColumns,
    CachedBlocks,
    PreemptionCosts,
    Refusal,
    RequestColumns,
    ServiceView,
    StepBudget,
    StepView,
    hookimpl,
    hookspecs,
)
from cadenza.policies.builtin import BUILTIN, DEFAULTS
from cadenza.policies.profile import HOOKS, OBSERVER, OBSERVERS, Profile
from cadenza.service.errors import Overloaded, QuotaExceeded
from cadenza.testing import Driver, oracle
from tests.service.entering import Door

SPECS = {
    name: function
    for name, function in vars(hookspecs).items()
    if inspect.isfunction(function) and function.__module__ == hookspecs.__name__
}


def driver_with(policy: type, hook: str, **limits: object) -> Driver:
    chosen = {"reserve_blocks": "none", hook: "mine"}
    return Driver(Profile(chosen, {**BUILTIN, "mine": policy}), **limits)


def three_that_over_commit(driver: Driver) -> None:
    for request in range(3):
        driver.add(request, [request + 1] * 7, max_tokens=12)


def test_every_hook_has_a_test_a_default_and_a_docstring():
    assert set(SPECS) == {*HOOKS, *OBSERVERS}
    assert set(DEFAULTS) == set(HOOKS)
    for name, spec in SPECS.items():
        assert f"test_hook_{name}" in globals(), f"no test for {name}"
        assert "Default:" in (spec.__doc__ or ""), f"{name} does not name its default"


def test_hook_rank_cached_blocks():
    """Five blocks are cached, of three requests one after another, and four are free."""
    told: list[list[list[int]]] = []

    class NewestFirst:
        @hookimpl
        def rank_cached_blocks(self, blocks: CachedBlocks, step: StepView) -> np.ndarray:
            told.append([blocks.last_use.tolist(), blocks.continued.tolist()])
            return -blocks.last_use

    driver = driver_with(NewestFirst, "rank_cached_blocks", num_blocks=9, max_model_len=32)
    for request, length in enumerate((8, 8, 4)):
        driver.add(request, [request + 1] * (length + 1), max_tokens=1)
        driver.run()
    assert told == []
    driver.add(3, [9] * 21, max_tokens=1)  # six blocks
    driver.run()
    assert told == [[[0, 1, 2, 3, 4], [False, True, False, True, False]]]

    for request, length in enumerate((8, 8, 4)):
        driver.add(4 + request, [request + 1] * (length + 1), max_tokens=1)
        driver.step()
    driver.run()
    # the newest is gone, and the head of the second with its tail
    assert [driver.cached[request] for request in (4, 5, 6)] == [8, 0, 0]


def test_hook_predict_lengths():
    asked: list[list[int]] = []
    told: list[list[int]] = []

    class Predicts:
        @hookimpl
        def predict_lengths(self, arrived: RequestColumns, step: StepView) -> np.ndarray:
            asked.append(arrived.request.tolist())
            return np.where(arrived.request == 4, 0.0, arrived.prompt_tokens + 0.5)

        @hookimpl
        def on_arrived(self, arrived: RequestColumns, step: StepView) -> None:
            told.append(arrived.predicted_tokens.tolist())

    driver = driver_with(Predicts, "predict_lengths")
    driver.add(0, [1] * 3, max_tokens=9)
    driver.add(1, [1] * 12, max_tokens=9)
    driver.add(2, [1], max_tokens=9, predicted_tokens=7)
    driver.step()
    driver.step()
    driver.add(3, [1], max_tokens=9, predicted_tokens=5)
    driver.step()
    driver.add(4, [1], max_tokens=9)
    driver.run()

    assert asked == [[0, 1], [4]]
    assert told == [[4, 9, 7], [5], [0]]


def test_hook_plan_budget():
    told: list[tuple[list[int], list[int], int]] = []
    budgets: list[int] = []

    class Narrow:
        @hookimpl
        def plan_budget(
            self, running: RequestColumns, waiting: RequestColumns, step: StepView
        ) -> StepBudget:
            told.append((running.request.tolist(), waiting.request.tolist(), step.token_budget))
            return StepBudget(16, prefill_chunk=7)

        @hookimpl
        def on_admitted(self, admitted: RequestColumns, step: StepView) -> None:
            budgets.append(step.token_budget)

    driver = driver_with(Narrow, "plan_budget", max_num_batched_tokens=32)
    driver.add(0, [1] * 20, max_tokens=4)
    driver.add(1, [2] * 20, max_tokens=4)
    computed = []
    for _ in range(3):
        driver.step()
        computed.append(driver.plan.num_new.tolist())

    assert told[:2] == [([], [0, 1], 32), ([0, 1], [], 32)]
    assert computed == [[7, 7], [7, 7], [6, 6]]
    assert budgets == [16]


def test_hook_order_admissions():
    class Longest:
        @hookimpl
        def order_admissions(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
            return -waiting.prompt_tokens.astype(float)

    driver = driver_with(Longest, "order_admissions", max_num_seqs=1)
    for request, length in enumerate((2, 9, 5)):
        driver.add(request, [1] * length, max_tokens=1)

    driver.run()

    assert driver.admitted == [1, 2, 0]


def test_hook_reserve_blocks():
    class Everything:
        @hookimpl
        def reserve_blocks(
            self, running: RequestColumns, candidates: RequestColumns, step: StepView
        ) -> np.ndarray:
            return np.full(len(candidates) + 1, step.total_blocks)

    driver = driver_with(Everything, "reserve_blocks")
    three_that_over_commit(driver)

    driver.step()

    assert driver.admitted == [0]


def test_a_reservation_counts_the_candidate_that_enters():
    """Element k is for the first k candidates: the first may enter while nothing runs, the second
    needs element 2, which asks for the whole pool."""

    class OnlyOne:
        @hookimpl
        def reserve_blocks(
            self, running: RequestColumns, candidates: RequestColumns, step: StepView
        ) -> np.ndarray:
            kept = np.zeros(len(candidates) + 1, dtype=np.int64)
            kept[2:] = step.total_blocks
            return kept

    driver = driver_with(OnlyOne, "reserve_blocks")
    three_that_over_commit(driver)

    driver.step()

    assert driver.admitted == [0]


def test_a_reservation_sees_parked_requests_and_candidates_in_order():
    told: list[tuple[list[bool], list[int]]] = []

    class Watch:
        @hookimpl
        def reserve_blocks(
            self, running: RequestColumns, candidates: RequestColumns, step: StepView
        ) -> None:
            told.append((sorted(running.parked.tolist()), candidates.request.tolist()))

    chosen = {"reserve_blocks": "mine", "order_admissions": "priority"}
    driver = Driver(Profile(chosen, {**BUILTIN, "mine": Watch}), max_num_seqs=4)
    driver.add(0, [1, 2], max_tokens=20, credit=1, ignore_eos=True)
    driver.add(1, [3, 4], max_tokens=20, ignore_eos=True)
    for _ in range(2):
        driver.step()
    for request in (2, 3):
        driver.add(request, [5, 6], priority=-request)
    driver.step()

    assert told[-1] == ([False, True], [3, 2])


@pytest.mark.parametrize(
    ("chosen", "credit", "asked"),
    [({}, None, False), ({}, 1, True), ({"allow_displacement": "strict-priority"}, None, True)],
)
def test_without_a_free_seat_an_order_is_asked_for_only_if_one_may_become_free(
    chosen: dict[str, str], credit: int | None, asked: bool
):
    orders: list[list[int]] = []

    class Watch:
        @hookimpl
        def order_admissions(self, waiting: RequestColumns, step: StepView) -> None:
            orders.append(waiting.request.tolist())

    profile = Profile({"order_admissions": "mine", **chosen}, {**BUILTIN, "mine": Watch})
    driver = Driver(profile, max_num_seqs=1)
    driver.add(0, [1, 2], max_tokens=20, credit=credit, ignore_eos=True)
    for _ in range(2):
        driver.step()
    driver.add(1, [3, 4])
    orders.clear()
    driver.step()

    assert orders == ([[1]] if asked else [])


@pytest.mark.parametrize(
    ("length", "choices", "passed_over"), [(50, 1, False), (2, 3, True)], ids=["blocks", "seats"]
)
def test_the_scan_ends_at_who_lacks_blocks_and_passes_over_who_lacks_some_seats(
    length: int, choices: int, passed_over: bool
):
    driver = Driver(Profile({"reserve_blocks": "none"}), num_blocks=16, max_num_seqs=3)
    driver.add(0, [1] * 18, max_tokens=20, ignore_eos=True)
    driver.step()
    driver.add(1, [2] * length, n=choices)
    driver.add(4, [3, 4])
    driver.step()

    assert driver.admitted == ([0, 4] if passed_over else [0])


def test_hook_select_victims():
    class ShortestOutput:
        @hookimpl
        def select_victims(self, running: RequestColumns, step: StepView) -> np.ndarray:
            return np.where(running.request == 1, 0.0, 1.0)

    driver = driver_with(ShortestOutput, "select_victims", num_blocks=6, max_model_len=24)
    three_that_over_commit(driver)

    driver.run()

    assert driver.preempted[0] == 1


def test_hook_allow_displacement():
    """One seat: the second request takes it from the first, which then waits for its end."""

    class ByRequest:
        @hookimpl
        def allow_displacement(
            self, candidate: RequestColumns, running: RequestColumns, step: StepView
        ) -> np.ndarray:
            return candidate.request[0] - running.request.astype(float)

    driver = driver_with(ByRequest, "allow_displacement", max_num_seqs=1)
    driver.add(0, [1, 2], max_tokens=4)
    driver.step()
    driver.add(1, [3, 4], max_tokens=4)

    driver.run()

    assert driver.preempted == [0]
    assert driver.admitted == [0, 1, 0]


class Told:
    """An observer of admissions and tokens beside some decision."""

    def __init__(self) -> None:
        self.admitted: list[dict[int, tuple[int, int]]] = []  # request: prefill left, preemptions
        self.generated: list[dict[int, int]] = []  # request: tokens so far

    def __call__(self) -> "Told":
        return self

    @hookimpl
    def select_victims(self, running: RequestColumns, step: StepView) -> None:
        return None

    @hookimpl
    def on_admitted(self, admitted: RequestColumns, step: StepView) -> None:
        facts = zip(admitted.remaining_prefill.tolist(), admitted.preemptions.tolist(), strict=True)
        self.admitted.append(dict(zip(admitted.request.tolist(), facts, strict=True)))

    @hookimpl
    def on_generated(self, generated: RequestColumns, step: StepView) -> None:
        counts = generated.generated_tokens.tolist()
        self.generated.append(dict(zip(generated.request.tolist(), counts, strict=True)))


def test_hook_on_arrived():
    told: list[list[tuple[int, int, bool]]] = []

    class Watch:
        @hookimpl
        def select_victims(self, running: RequestColumns, step: StepView) -> None:
            return None

        @hookimpl
        def on_arrived(self, arrived: RequestColumns, step: StepView) -> None:
            facts = (arrived.request, arrived.generated_tokens, arrived.resumed)
            told.append(list(zip(*(each.tolist() for each in facts), strict=True)))

    driver = driver_with(Watch, "select_victims")
    driver.add(0, [1, 2, 3], n=2, max_tokens=8)
    driver.add(2, [1, 2], max_tokens=8, emitted=np.array(oracle([1, 2], 3)))
    driver.step()
    driver.add(3, [4], max_tokens=8)
    driver.run()

    assert told == [[(0, 0, False), (2, 3, True)], [(3, 0, False)]]


def test_hook_on_admitted():
    told = Told()
    driver = driver_with(told, "select_victims")
    driver.add(0, [1, 2, 3], n=2, max_tokens=8, ignore_eos=True)
    driver.add(2, list(range(1, 11)), max_tokens=8, ignore_eos=True)
    for _ in range(2):
        driver.step()
    driver.scheduler.preempt(2, swap=False)
    driver.run()

    # the one that came back found its two full blocks again
    assert told.admitted == [{0: (3, 0), 2: (10, 0)}, {2: (4, 1)}]


def test_hook_on_preempted():
    told: list[list[tuple[int, int, int]]] = []

    class Watch:
        @hookimpl
        def on_preempted(self, preempted: RequestColumns, step: StepView) -> None:
            facts = (preempted.request, preempted.remaining_prefill, preempted.preemptions)
            told.append(list(zip(*(each.tolist() for each in facts), strict=True)))

    chosen = {"reserve_blocks": "none", OBSERVER: "mine"}
    driver = Driver(Profile(chosen, {**BUILTIN, "mine": Watch}), num_blocks=6, max_model_len=24)
    three_that_over_commit(driver)
    driver.run()

    assert [request for each in told for request, _, _ in each] == driver.preempted
    assert told[0] == [(2, 9, 1)]  # after two tokens; the others have taken its blocks


def test_hook_on_resumed():
    calls: list[tuple[str, list[int]]] = []

    class Watch:
        @hookimpl
        def on_preempted(self, preempted: RequestColumns, step: StepView) -> None:
            calls.append(("preempted", preempted.request.tolist()))

        @hookimpl
        def on_admitted(self, admitted: RequestColumns, step: StepView) -> None:
            calls.append(("admitted", admitted.request.tolist()))

        @hookimpl
        def on_resumed(self, resumed: RequestColumns, step: StepView) -> None:
            calls.append(("resumed", resumed.request.tolist()))

    driver = Driver(Profile({OBSERVER: "mine"}, {**BUILTIN, "mine": Watch}))
    driver.add(0, [1, 2, 3], max_tokens=8, ignore_eos=True)
    driver.step()
    driver.scheduler.preempt(0, swap=False)
    driver.add(1, [4], max_tokens=8, ignore_eos=True)
    driver.run()

    assert calls == [
        ("admitted", [0]),
        ("preempted", [0]),
        ("admitted", [0, 1]),
        ("resumed", [0]),
    ]


def test_hook_on_generated():
    told = Told()
    driver = driver_with(told, "select_victims")
    driver.add(0, [1, 2, 3], n=2, max_tokens=2, ignore_eos=True)
    driver.add(2, [4, 5], max_tokens=1)
    driver.runner.fail.add(3)
    driver.add(3, [6, 7], max_tokens=1)
    driver.run()

    assert told.generated == [{0: 1, 1: 1, 2: 1}, {0: 2, 1: 2}]


def test_hook_on_finished():
    told: dict[int, int] = {}

    class Learns:
        @hookimpl
        def select_victims(self, running: RequestColumns, step: StepView) -> None:
            return None

        @hookimpl
        def on_finished(self, finished: RequestColumns, step: StepView) -> None:
            told.update(
                zip(finished.request.tolist(), finished.generated_tokens.tolist(), strict=True)
            )

    driver = driver_with(Learns, "select_victims")
    for request in range(3):
        driver.add(request, [1, 2], max_tokens=2 + request)
    driver.run()

    assert told == {0: 2, 1: 3, 2: 4}


def test_hook_choose_preemption():
    seen: list[tuple[list[int], list[int], int]] = []

    class Watch:
        @hookimpl
        def choose_preemption(
            self, victims: RequestColumns, costs: PreemptionCosts, step: StepView
        ) -> np.ndarray:
            seen.append(
                (
                    victims.request.tolist(),
                    costs.recompute_tokens.tolist(),
                    costs.free_host_blocks,
                )
            )
            return np.ones(len(victims), dtype=bool)

    driver = driver_with(Watch, "choose_preemption", num_blocks=6, max_model_len=24)
    three_that_over_commit(driver)

    driver.run()

    assert [victim for victims, _, _ in seen for victim in victims] == driver.preempted
    assert all(tokens >= 7 for _, costs, _ in seen for tokens in costs)
    assert all(free == 0 for _, _, free in seen)


def test_hook_guard_starvation():
    class LastIsStarving:
        @hookimpl
        def guard_starvation(self, waiting: RequestColumns, step: StepView) -> np.ndarray:
            return waiting.request == 4

    driver = driver_with(LastIsStarving, "guard_starvation", max_num_seqs=1)
    for request in range(5):
        driver.add(request, [1], max_tokens=1)

    driver.run()

    assert driver.admitted == [4, 0, 1, 2, 3]


def test_hook_gate_arrivals():
    class NoLongPrompts:
        @hookimpl
        def gate_arrivals(
            self, arrivals: ArrivalColumns, service: ServiceView
        ) -> list[Refusal | None]:
            return [
                Refusal(reason="Too long for you.", limit="tenant") if length > 5 else None
                for length in arrivals.prompt_tokens.tolist()
            ]

    door = Door(policies={"mine": NoLongPrompts}, gate_arrivals="mine")
    door.enter([1] * 5)

    with pytest.raises(QuotaExceeded, match="Too long for you"):
        door.enter([1] * 5, [1] * 6)
    assert door.queue.num_taken == 1


def test_hook_shed_load():
    class LongestPrompt:
        @hookimpl
        def shed_load(self, waiting: ArrivalColumns, service: ServiceView) -> np.ndarray:
            return waiting.prompt_tokens.astype(float)

    door = Door(2, policies={"mine": LongestPrompt}, shed_load="mine")
    longer, shorter = door.enter([1] * 9), door.enter([1] * 4)

    door.enter([1] * 6)
    with pytest.raises(Overloaded):
        door.enter([1] * 7)

    assert isinstance(longer.refusal, Overloaded)
    assert shorter.refusal is None


def test_hooks_are_asked_in_the_order_of_the_phases():
    calls: list[str] = []

    class Trace:
        pass

    def traced(hook: str):
        default = getattr(BUILTIN[{**DEFAULTS, "reserve_blocks": "none"}[hook]](), hook)
        names = list(inspect.signature(SPECS[hook]).parameters)

        def call(*arguments: object) -> object:
            calls.append(hook)
            return default(*arguments)

        source = f"lambda self, {', '.join(names)}: call({', '.join(names)})"
        return hookimpl(eval(source, {"call": call}))

    for hook in HOOKS:
        setattr(Trace, hook, traced(hook))
    driver = Driver(
        Profile(dict.fromkeys(HOOKS, "trace"), {**BUILTIN, "trace": Trace}),
        num_blocks=6,
        max_model_len=24,
    )
    for request in range(3):
        driver.add(request, [request + 1] * 7, max_tokens=12)
    driver.step()
    decided = ["guard_starvation", "order_admissions", "reserve_blocks"]
    assert calls == ["predict_lengths", "plan_budget", *decided]

    while driver.scheduler.has_unfinished and not driver.preempted:
        calls.clear()
        driver.step()
    assert calls == ["plan_budget", "select_victims", "choose_preemption"]


def test_a_column_is_what_the_table_holds():
    columns = {"priority": np.array([5, 6, 7])}
    view = RequestColumns(columns, np.array([2, 0]))

    assert len(view) == 2
    assert view.priority.tolist() == [7, 5]
    assert columns["priority"].tolist() == [5, 6, 7]
