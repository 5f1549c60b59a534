"""Policies that change between two steps: no request notices, and a change that fails is none."""

from __future__ import annotations

import gc
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cadenza.engine.policies import BUSY, EnginePolicies, library_of
from cadenza.policies import RequestColumns, hookimpl
from cadenza.policies.builtin import BUILTIN, DEFAULTS
from cadenza.policies.choices import choose
from cadenza.policies.decisions import Decisions
from cadenza.policies.discovery import Catalog, Found
from cadenza.policies.errors import ProfileError
from cadenza.policies.library import Library
from cadenza.policies.presets import PRESETS
from cadenza.policies.profile import Profile
from cadenza.policies.runner import STRIKES, PolicyUnusable
from cadenza.scheduler.plan import StepOutcome, StepPlan
from cadenza.scheduler.states import FinishReason
from cadenza.testing import Driver, oracle
from cadenza.testing.fake_runner import SteppedRunner
from cadenza.wire.codec import encode
from cadenza.wire.messages import (
    DescribePolicies,
    PoliciesAnswer,
    PoliciesState,
    PolicyConfig,
    ReleasePolicy,
    Shutdown,
    Step,
    UseProfile,
    UseShadow,
)
from tests.engine.test_loop import Engine, Front, submit
from tests.policies.plugins import policy_module

CONFIGS = [
    PolicyConfig(chosen=dict(choose(preset).chosen), options=dict(choose(preset).options))
    for preset in PRESETS
]


class Failing:
    """Fails once it is asked in earnest; a throw-away has nobody to fail."""

    fails: ClassVar[bool] = False

    @hookimpl
    def order_admissions(self) -> Any:
        if self.fails:
            raise ValueError("no")


class FailingListener(Failing):
    fails: ClassVar[bool] = False
    told: ClassVar[list[list[int]]] = []

    @hookimpl
    def on_arrived(self, arrived: RequestColumns) -> None:
        self.told.append(arrived.request.tolist())


class Unspeakable:
    """Cannot be built, for a reason that no message can carry."""

    def __init__(self) -> None:
        raise ValueError("\udcff\x1b[2J")

    @hookimpl
    def order_admissions(self) -> None: ...


class Reversed:
    """The newest first, and counts itself."""

    asked: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self._asked = 0

    @hookimpl
    def order_admissions(self, waiting: RequestColumns) -> Any:
        self._asked += 1
        self.asked.append(self._asked)
        return -waiting.arrival


class Listening:
    """Writes down of whom it is told: requests, and which of them as resumed."""

    told: ClassVar[list[tuple[list[int], list[bool]]]] = []

    @hookimpl
    def on_arrived(self, arrived: RequestColumns) -> None:
        self.told.append((arrived.request.tolist(), arrived.resumed.tolist()))


class ListeningToo(Listening):
    told: ClassVar[list[tuple[list[int], list[bool]]]] = []


class Hanging:
    """Is built when the test says so."""

    go = threading.Event()

    def __init__(self) -> None:
        self.go.wait()

    @hookimpl
    def order_admissions(self) -> None: ...


class Unbuildable:
    def __init__(self) -> None:
        raise KeyError("no weights")

    @hookimpl
    def order_admissions(self) -> None: ...


POLICIES = {
    "failing": Failing,
    "reversed": Reversed,
    "listening": Listening,
    "listening-too": ListeningToo,
    "hanging": Hanging,
    "unbuildable": Unbuildable,
    "unspeakable": Unspeakable,
    "failing-listener": FailingListener,
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    Failing.fails, Reversed.asked = False, []
    Listening.told, ListeningToo.told = [], []
    Hanging.go = threading.Event()
    yield
    Hanging.go.set()


def choice(**chosen: str) -> PolicyConfig:
    return PolicyConfig(chosen={hook: (policy,) for hook, policy in chosen.items()})


def policies(config: PolicyConfig | None = None, **settings: Any) -> EnginePolicies:
    found = {name: Found(cls=cls, source="test") for name, cls in (BUILTIN | POLICIES).items()}
    settings.setdefault("timer", lambda: 0.0)  # a busy machine is no fault of theirs
    settings.setdefault("library", Library(catalog=Catalog(policies=found)))
    return EnginePolicies(config or PolicyConfig(), **settings)


class Changing:
    """A scheduler under pressure, whose policies change when the test says so."""

    def __init__(self, config: PolicyConfig | None = None, num: int = 12, **settings: Any) -> None:
        self.policies = policies(config, **settings)
        self.driver = Driver(num_blocks=16, num_host_blocks=8, max_num_seqs=4)
        self.driver.scheduler.use(self.policies.decisions)
        self.wanted: dict[int, list[int]] = {}
        for request in range(num):
            self.add(request)

    def add(self, request: int) -> None:
        prompt = [request + 1] * (3 + request % 5)
        tokens = 4 + request % 6
        self.driver.add(request, prompt, max_tokens=tokens, priority=-request)
        self.wanted[request] = oracle(prompt, tokens)

    def ask(self, message: Any) -> Any:
        """The answer, with no step in between."""
        answer = self.policies.handle(message, self.driver.scheduler)
        if answer is not None:
            return answer
        assert self.policies._change is not None
        self.policies._change.preparation.future.exception(10)
        return self.policies.advance(self.driver.scheduler)

    def use(self, config: PolicyConfig) -> str | None:
        answer = self.ask(UseProfile(7, config))
        assert isinstance(answer, PoliciesAnswer)
        assert answer.number == 7
        return answer.error

    def state(self) -> PoliciesState:
        state = self.ask(DescribePolicies(1))
        assert isinstance(state, PoliciesState)
        return state

    def finish(self) -> None:
        """Every request ends, with the tokens that it would have had alone."""
        self.driver.run()
        assert self.driver.tokens == self.wanted
        assert {*self.driver.ends.values()} == {FinishReason.LENGTH}


def test_the_next_step_decides_otherwise():
    changing = Changing()
    assert changing.use(choice(order_admissions="reversed")) is None

    changing.driver.step()

    assert changing.driver.admitted[:2] == [11, 10]
    assert changing.state().live.decisions["order_admissions"] == ("reversed",)
    changing.finish()


@pytest.mark.parametrize("preset", ["priority", "vllm-like"])
def test_a_change_between_any_two_steps_leaves_every_output_as_it_was(preset: str):
    config = CONFIGS[[*PRESETS].index(preset)]
    steps = 0
    while True:
        changing = Changing()
        for _ in range(steps):
            if changing.driver.scheduler.has_unfinished:
                changing.driver.step()
        assert changing.use(config) is None
        was_over = not changing.driver.scheduler.has_unfinished
        changing.finish()
        if was_over:
            break
        steps += 1
    assert steps > 10


def test_changes_between_all_steps_leave_every_output_as_it_was():
    changing = Changing()
    number = 0
    while changing.driver.scheduler.has_unfinished:
        assert changing.use(CONFIGS[number % len(CONFIGS)]) is None
        changing.driver.step()
        number += 1
    changing.finish()


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (choice(order_admissions="nobody-knows"), "there is no policy 'nobody-knows'"),
        (
            choice(order_admissions="unbuildable"),
            "'unbuildable' cannot be used: KeyError: 'no weig",
        ),
        (PolicyConfig(options={"fcfs": {"a": "1"}}), "policy 'fcfs' takes no options"),
    ],
)
def test_a_change_that_fails_changes_nothing(config: PolicyConfig, error: str):
    changing = Changing(choice(order_admissions="reversed"))
    changing.driver.step()
    before, decisions = changing.state(), changing.policies.decisions

    told = changing.use(config)

    assert told is not None
    assert error in told
    assert changing.state() == before
    assert changing.policies.decisions is decisions
    changing.driver.step()
    assert Reversed.asked == [*range(1, len(Reversed.asked) + 1)], "the same instance goes on"
    changing.finish()


def test_a_file_that_the_front_loaded_otherwise_is_not_used(tmp_path: Path):
    (tmp_path / "mine.py").write_text(policy_module("mine"))
    chosen = {"order_admissions": ("mine",)}
    config = PolicyConfig(chosen=chosen, plugins_dir=str(tmp_path), digests={"mine": "another"})
    with pytest.raises(ProfileError, match="different versions"):
        EnginePolicies(config)

    changing = Changing(library=library_of(config))
    told = changing.use(config)

    assert told is not None
    assert "'mine': front and engine process have loaded different versions" in told
    assert changing.state().live.decisions["order_admissions"] == ("fcfs",)
    library = changing.policies._library
    digests = library.digests(library.profile(chosen, {}))
    assert changing.use(PolicyConfig(chosen=chosen, digests=digests)) is None


def test_what_was_refused_is_loaded_anew_and_what_decided_is_not(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(policy_module("mine").replace("waiting.arrival", "waiting.arival"))
    config = PolicyConfig(chosen={"order_admissions": ("mine",)}, plugins_dir=str(tmp_path))
    changing = Changing(library=library_of(config))
    assert "'arival'" in str(changing.use(config))

    file.write_text(policy_module("mine"))
    assert changing.use(config) is None
    assert changing.use(PolicyConfig()) is None
    file.write_text(policy_module("mine") + "# edited\n")

    assert "restart the service" in str(changing.use(config))


def test_what_decided_from_the_start_needs_a_restart(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(policy_module("mine"))
    config = PolicyConfig(chosen={"order_admissions": ("mine",)}, plugins_dir=str(tmp_path))
    changing = Changing(config, library=library_of(config))
    assert changing.use(PolicyConfig()) is None
    file.write_text(policy_module("mine") + "# edited\n")

    assert "restart the service" in str(changing.use(config))


def test_a_hook_that_fails_when_it_is_tried_is_not_used():
    changing = Changing()
    Failing.fails = True

    told = changing.use(choice(order_admissions="failing"))

    assert told is not None
    assert "'failing' fails in order_admissions when it is tried: ValueError('no')" in told
    assert changing.state().live.decisions["order_admissions"] == ("fcfs",)
    assert changing.state().live.faults == ()


def test_a_watermark_comes_and_goes_with_its_profile():
    changing = Changing()
    stores = changing.driver.scheduler._stores
    assert stores.watermark == 0
    seen = []
    for watermark in (0.25, None, 0.5, 0.0):
        changing.use(PolicyConfig(watermark=watermark))
        seen.append(stores.watermark)
    changing.ask(UseShadow(1, PolicyConfig(watermark=0.75)))

    assert [*seen, stores.watermark] == [4, 0, 8, 0, 0]
    changing.finish()


def test_trying_leaves_no_marks():
    changing = Changing()
    changing.use(choice(order_admissions="reversed"))
    assert Reversed.asked == [1], "a throw-away"

    changing.driver.step()

    assert Reversed.asked == [1, 1]


def test_a_policy_in_both_goes_on_where_it_was():
    changing = Changing(choice(order_admissions="reversed"))
    changing.driver.step()
    asked = len(Reversed.asked)

    changing.use(choice(order_admissions="reversed", select_victims="lowest-priority"))
    changing.finish()

    assert Reversed.asked == [*range(1, len(Reversed.asked) + 1)]
    assert len(Reversed.asked) > asked


def test_what_foreign_code_says_can_be_sent():
    told = Changing().use(choice(order_admissions="unspeakable"))

    assert told is not None
    assert re.fullmatch(
        r"policy 'unspeakable' cannot be used: \w+: \\udcff\\x1b\[2J at \S+ in __init__", told
    )
    encode(PoliciesAnswer(1, told))


def test_instances_that_cannot_be_taken_over_in_the_end_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    changing = Changing(choice(order_admissions="reversed"))
    decisions = changing.policies.decisions

    def refuse(self: Profile, before: Profile) -> None:
        raise ProfileError("policy 'reversed' cannot be used: no")

    with monkeypatch.context() as patch:
        patch.setattr(Profile, "follow", refuse)
        told = changing.use(PolicyConfig())

    assert told == "policy 'reversed' cannot be used: no"
    assert changing.policies.decisions is decisions
    assert changing.use(PolicyConfig()) is None
    changing.finish()


@pytest.mark.parametrize("at", ["try_out", "follow"])
def test_what_was_built_for_a_change_that_fails_ends_aside(
    monkeypatch: pytest.MonkeyPatch, at: str
):
    ended = threading.Semaphore(0)
    threads: list[threading.Thread] = []

    class Ends(Reversed):
        def __del__(self) -> None:
            threads.append(threading.current_thread())
            ended.release()

    def refuse(*_: Any) -> None:
        raise ProfileError("no")

    monkeypatch.setattr({"try_out": Library, "follow": Profile}[at], at, refuse)
    found = {name: Found(cls=cls, source="test") for name, cls in {**BUILTIN, "ends": Ends}.items()}
    changing = Changing(library=Library(catalog=Catalog(policies=found)))
    gc.disable()
    try:
        assert changing.use(choice(order_admissions="ends")) == "no"
        for _ in range(1 if at == "try_out" else 2):  # one was for trying
            assert ended.acquire(timeout=10)
    finally:
        gc.enable()

    assert threading.main_thread() not in threads


def test_a_second_change_waits_for_the_first_to_end():
    changing = Changing()
    scheduler = changing.driver.scheduler
    first = UseProfile(1, choice(order_admissions="hanging"))
    assert changing.policies.handle(first, scheduler) is None
    assert changing.policies.is_changing

    for second in (
        UseProfile(2, PolicyConfig()),
        UseShadow(2, PolicyConfig()),
        UseShadow(2, None),
    ):
        assert changing.policies.handle(second, scheduler) == PoliciesAnswer(2, BUSY)
    assert changing.policies.advance(scheduler) is None
    changing.driver.step()

    Hanging.go.set()
    assert changing.policies._change is not None
    changing.policies._change.preparation.future.result(10)
    assert changing.policies.advance(scheduler) == PoliciesAnswer(1)
    assert not changing.policies.is_changing
    assert changing.use(PolicyConfig()) is None
    changing.finish()


def test_a_constructor_that_hangs_is_given_up():
    now_s = 0.0
    changing = Changing(timer=lambda: now_s, limit_s=20.0)
    scheduler = changing.driver.scheduler
    changing.policies.handle(UseProfile(1, choice(order_admissions="hanging")), scheduler)
    now_s = 19.9
    assert changing.policies.advance(scheduler) is None

    now_s = 20.0
    answer = changing.policies.advance(scheduler)

    assert answer == PoliciesAnswer(
        1, "The new policies (hanging) were not built and tried within 20 s."
    )
    assert changing.use(choice(order_admissions="reversed")) is None
    Hanging.go.set()
    assert changing.policies.advance(scheduler) is None, "what comes too late is nobody's"
    assert changing.state().live.decisions["order_admissions"] == ("reversed",)
    changing.finish()


def quarantined() -> Changing:
    changing = Changing(choice(order_admissions="failing"), num=20)
    Failing.fails = True
    while "failing" not in changing.state().live.quarantined:
        changing.driver.step()
    Failing.fails = False
    return changing


def test_another_victim_policy_does_not_clear_a_quarantine():
    changing = quarantined()
    changing.use(choice(order_admissions="failing", select_victims="lowest-priority"))

    state = changing.state().live

    assert state.quarantined == ("failing",)
    (faults,) = state.faults
    assert (faults.policy, faults.hook, faults.faults) == ("failing", "order_admissions", STRIKES)
    assert faults.last_error.startswith("ValueError('no') at test_policies.py:")
    changing.finish()


def test_a_release_clears_it():
    changing = quarantined()
    answer = changing.ask(ReleasePolicy(3, "failing"))

    assert answer == PoliciesAnswer(3)
    assert changing.state().live.quarantined == ()
    assert changing.state().live.faults[0].faults == STRIKES
    changing.finish()


def test_what_a_release_brings_back_is_told_who_is_here():
    changing = quarantined_listener()
    changing.driver.step()
    assert FailingListener.told == []

    here = {*changing.wanted} - {*changing.driver.ends}
    assert changing.ask(ReleasePolicy(3, "failing-listener")) == PoliciesAnswer(3)
    changing.driver.step()

    (told,) = FailingListener.told
    assert {*told} == here
    table = changing.driver.scheduler._stores.table
    assert not table.resumed[[*table]].any(), "to all others"
    assert changing.ask(ReleasePolicy(3, "failing-listener")) == PoliciesAnswer(3)
    changing.finish()
    assert len(FailingListener.told) == 1, "who was not quarantined knows everybody"


def quarantined_listener() -> Changing:
    changing = Changing(choice(order_admissions="failing-listener"), num=20)
    FailingListener.fails = True
    while "failing-listener" not in changing.state().live.quarantined:
        changing.driver.step()
    FailingListener.fails, FailingListener.told = False, []
    return changing


def test_a_release_says_in_which_profile_it_failed(monkeypatch: pytest.MonkeyPatch):
    changing = Changing()
    changing.ask(UseShadow(1, PolicyConfig()))
    shadow = changing.policies._shadow
    assert shadow is not None

    def refuse(policy: str) -> None:
        raise PolicyUnusable(f"policy {policy!r} cannot be built anew: no")

    released: list[str] = []
    monkeypatch.setattr(changing.policies._runner, "release", refuse)
    monkeypatch.setattr(shadow.runner, "release", released.append)

    answer = changing.ask(ReleasePolicy(3, "fcfs"))

    assert answer.error == "policy 'fcfs' cannot be built anew: no (in the live profile)"
    assert released == ["fcfs"], "the other one is asked all the same"


def test_only_policies_in_use_are_released():
    changing = Changing()
    answer = changing.ask(ReleasePolicy(3, "edf"))
    in_use = ", ".join(dict.fromkeys(DEFAULTS.values()))
    assert answer.error == f"The policy 'edf' is not in use; {in_use} are."

    changing.ask(UseShadow(4, PolicyConfig(chosen={"order_admissions": ("reversed",)})))
    answer = changing.ask(ReleasePolicy(5, "edf"))
    assert answer.error == f"The policy 'edf' is not in use; {in_use}, reversed are."


def test_faults_never_fall():
    changing = quarantined()
    seen = []
    for config in (PolicyConfig(), choice(order_admissions="failing"), PolicyConfig()):
        changing.use(config)
        changing.driver.step()
        seen.append(changing.driver.scheduler.statistics().policy_faults)
        assert changing.state().live.faults[0].faults == STRIKES
    assert seen == [STRIKES] * 3
    assert changing.state().live.quarantined == ()


def test_a_shadow_is_asked_and_changes_nothing():
    plain, changing = Changing(), Changing()
    shadow = choice(order_admissions="reversed")
    assert changing.ask(UseShadow(1, shadow)) == PoliciesAnswer(1)
    plain.finish()
    changing.finish()

    assert changing.driver.admitted == plain.driver.admitted
    assert changing.driver.preempted == plain.driver.preempted
    state = changing.state()
    assert state.live.decisions["order_admissions"] == ("fcfs",)
    assert state.shadow is not None
    assert state.shadow.profile.decisions["order_admissions"] == ("reversed",)
    orders = next(each for each in state.shadow.comparisons if each.hook == "order_admissions")
    assert orders.asked == len(Reversed.asked) - 1 > orders.first_differed > 0


def test_faults_of_a_shadow_are_its_own():
    changing = Changing(num=20)
    changing.ask(UseShadow(1, choice(order_admissions="failing")))
    Failing.fails = True
    changing.finish()

    state = changing.state()
    assert state.shadow is not None
    assert state.shadow.profile.quarantined == ("failing",)
    assert state.shadow.profile.faults[0].faults == STRIKES
    assert state.live.faults == ()
    assert changing.policies.take_news() == ()
    assert changing.ask(ReleasePolicy(2, "failing")) == PoliciesAnswer(2)
    released = changing.state().shadow
    assert released is not None
    assert released.profile.quarantined == ()


def test_uses_are_told_once_a_second_and_before_a_rest():
    now_s = 10.0
    changing = Changing(timer=lambda: now_s)

    assert changing.policies.take_uses(rests=True) == (), "nobody has been asked"
    changing.driver.step()
    first = {(use.policy, use.hook): use for use in changing.policies.take_uses(rests=False)}
    assert first["fcfs", "order_admissions"].calls == 1
    for _ in range(8):
        changing.driver.step()
    assert changing.policies.take_uses(rests=False) == (), "so soon"
    assert changing.policies.take_uses(rests=True), "nothing may follow for long"
    changing.finish()
    now_s += 1.0
    last = {(use.policy, use.hook): use for use in changing.policies.take_uses(rests=False)}
    assert last["fcfs", "order_admissions"].calls > 1
    now_s += 1.0
    assert changing.policies.take_uses(rests=True) == (), "nothing new"


def test_uses_tell_how_often_a_policy_was_passed_over():
    changing = quarantined()
    changing.policies.take_uses(rests=True)

    changing.driver.step()

    told = {(use.policy, use.hook): use for use in changing.policies.take_uses(rests=True)}
    assert told["failing", "order_admissions"].passed_over > 0


def test_a_shadow_outlives_other_live_policies_and_compares_anew():
    changing = Changing()
    changing.ask(UseShadow(1, choice(order_admissions="reversed")))
    changing.driver.step()

    changing.use(choice(order_admissions="reversed"))
    state = changing.state().shadow
    assert state is not None
    assert {each.asked for each in state.comparisons} == {0}
    changing.finish()

    state = changing.state().shadow
    assert state is not None
    orders = next(each for each in state.comparisons if each.hook == "order_admissions")
    assert orders.asked > orders.differed == 0


def test_without_a_shadow_decisions_are_plain():
    changing = Changing()
    changing.ask(UseShadow(1, choice(order_admissions="reversed")))
    assert type(changing.policies.decisions) is not Decisions

    assert changing.ask(UseShadow(2, None)) == PoliciesAnswer(2)

    assert type(changing.policies.decisions) is Decisions
    assert changing.state().shadow is None
    assert changing.ask(UseShadow(3, None)) == PoliciesAnswer(3)
    changing.finish()


def test_only_newcomers_are_told_who_is_here():
    changing = Changing(PolicyConfig(chosen={"observer": ("listening",)}), num=2)
    changing.driver.step()
    both = PolicyConfig(chosen={"observer": ("listening", "listening-too")})
    changing.add(2)
    assert changing.use(both) is None
    ListeningToo.told.clear()  # of the throw-away
    changing.add(3)

    changing.driver.step()

    assert Listening.told == [([0, 1], [False, False]), ([2, 3], [True, False])]
    assert ListeningToo.told == [([0, 1, 2, 3], [True, True, True, False])]
    assert changing.use(PolicyConfig(chosen=both.chosen, options={})) is None
    changing.finish()
    assert len(Listening.told) == 2
    assert len(ListeningToo.told) == 1


def test_a_newcomer_that_another_change_kept_is_told_as_well():
    changing = Changing(num=2)
    changing.driver.step()
    changing.use(PolicyConfig(chosen={"observer": ("listening",)}))
    changing.use(PolicyConfig(chosen={"observer": ("listening",), "reserve_blocks": ("none",)}))
    Listening.told.clear()

    changing.driver.step()

    assert Listening.told == [([0, 1], [True, True])]


def test_a_shadow_is_introduced_and_the_live_policies_are_not():
    changing = Changing(PolicyConfig(chosen={"observer": ("listening",)}), num=2)
    changing.driver.step()
    changing.ask(UseShadow(1, PolicyConfig(chosen={"observer": ("listening-too",)})))
    ListeningToo.told.clear()

    changing.driver.step()
    table = changing.driver.scheduler._stores.table
    assert not table.resumed[[table.row_of(request) for request in (0, 1)]].any()
    changing.use(PolicyConfig(chosen={"observer": ("listening",), "reserve_blocks": ("none",)}))
    changing.driver.step()

    assert Listening.told == [([0, 1], [False, False])]
    assert ListeningToo.told == [([0, 1], [True, True])]
    changing.finish()


# The loop


class Held(SteppedRunner):
    """Executes the first plan once the test lets it."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.started, self.go = threading.Event(), threading.Event()

    def execute(self, plan: StepPlan) -> StepOutcome:
        self.started.set()
        self.go.wait()
        return self._runner.launch(plan)()


@pytest.fixture
def served() -> Iterator[tuple[Front, Held]]:
    driver = Driver()
    held = driver.runner = Held(driver.runner)  # type: ignore[assignment]
    own = policies(choice(order_admissions="reversed"))
    driver.scheduler.use(own.decisions)
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    engine = Engine(theirs, driver, own)
    yield Front(ours), held  # type: ignore[misc]
    held.go.set()  # type: ignore[attr-defined]
    ours.close()
    engine.join()
    theirs.close()


def answers(front: Front, count: int) -> tuple[list[Any], Step]:
    """So many answers, and the first step after the last."""
    found: list[Any] = []
    while True:
        message = front.receive()
        if not isinstance(message, Step):
            found.append(message)
        elif len(found) == count:
            return found, message


def test_changes_that_come_during_a_step_take_effect_after_it(served: tuple[Front, Held]):
    front, held = served
    front.send(submit(1, [5, 6], max_tokens=8))
    assert held.started.wait(10)
    front.send(
        UseProfile(1, PolicyConfig()),
        UseProfile(2, PolicyConfig()),
        DescribePolicies(3),
        submit(2, [7]),
    )
    held.go.set()

    found: list[Any] = []
    while len(found) < 3:
        message = front.receive()
        if not isinstance(message, Step):
            found.append(message)

    assert found[0] == PoliciesAnswer(2, BUSY)
    assert isinstance(found[1], PoliciesState)
    assert found[1].live.decisions["order_admissions"] == ("reversed",)
    assert found[2] == PoliciesAnswer(1)
    front.send(DescribePolicies(4))
    (state,), _ = answers(front, 1)
    assert state.live.decisions["order_admissions"] == ("fcfs",)


def test_an_engine_at_rest_answers_and_counts_what_it_was_asked(served: tuple[Front, Held]):
    front, held = served
    held.go.set()
    front.send(UseProfile(1, PolicyConfig()), ReleasePolicy(2, "edf"), UseShadow(3, None))

    found, step = answers(front, 3)

    assert sorted(each.number for each in found) == [1, 2, 3]
    assert {each.number: each.error for each in found}[1] is None
    assert step.counters.received == 3
    front.send(Shutdown())
