"""Two phases over two processes, with a fake engine: all of a change, or nothing of it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cadenza.policies import hookimpl
from cadenza.policies.builtin import DEFAULTS
from cadenza.policies.errors import ProfileError
from cadenza.policies.library import Library
from cadenza.policies.profile import Profile
from cadenza.policies.runner import STRIKES
from cadenza.policies.warm_up import made_up_views
from cadenza.service.errors import (
    ChangeUnderWay,
    EngineUnavailable,
    InvalidRequest,
    RequestError,
    UnknownPolicy,
)
from cadenza.service.policy_report import Comparison
from cadenza.service.request import GenerationRequest
from cadenza.wire.messages import PolicyConfig, ReleasePolicy, UseProfile, UseShadow
from cadenza.wire.policies import HookFaults
from tests.policies.plugins import policy_module

from .conftest import Front, OpenFront


class Hanging:
    go = threading.Event()

    def __init__(self) -> None:
        self.go.wait()

    @hookimpl
    def order_admissions(self) -> None: ...


class Failing:
    @hookimpl
    def order_admissions(self) -> Any:
        raise ValueError("no")


class Gate:
    """Answers with what is no refusal, unless the test says otherwise."""

    answers: ClassVar[Any] = ["no"]

    @hookimpl
    def gate_arrivals(self) -> Any:
        return self.answers


class Once:
    """Cannot be built whenever one likes."""

    may_be_built = True
    still_to_build = 0  # although it may not

    def __init__(self) -> None:
        if not self.may_be_built:
            if not self.still_to_build:
                raise ValueError("no more")
            type(self).still_to_build -= 1

    @hookimpl
    def order_admissions(self) -> Any:
        return []


POLICIES: dict[str, type] = {"hanging": Hanging, "failing": Failing, "gate": Gate}

FAIR = {"preset": "fair-share"}


@pytest.fixture(autouse=True)
def hang() -> Iterator[None]:
    Hanging.go = threading.Event()
    Gate.answers = ["no"]
    yield
    Hanging.go.set()


def changes(front: Front) -> list[Any]:
    kinds = UseProfile | UseShadow | ReleasePolicy
    return [message for message in front.engine.received if isinstance(message, kinds)]


def strike_out(front: Front, policy: str, *, shadow: bool = False) -> None:
    """Let the policy fail in the front until it is quarantined there."""
    policies = front.generator.policies
    runner = policies._runner
    if shadow:
        assert policies._shadow is not None
        runner = policies._shadow.runner
    views = made_up_views()
    for step_id in range(STRIKES):
        step = replace(views["step"], step_id=step_id)
        arguments = {"waiting": views["waiting"], "step": step}
        runner.ask(policy, "order_admissions", lambda answer: 1 / 0, arguments)


def test_both_processes_use_the_profile(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front() as front:
            content = {
                "preset": "priority",
                "decisions": {"reserve": "none"},
                "options": {"priority": {"aging_s": 5}},
            }
            await front.control.use(content)

            assert front.engine.policies == PolicyConfig(
                chosen={
                    "order_admissions": ("priority",),
                    "allow_displacement": ("strict-priority",),
                    "select_victims": ("lowest-priority",),
                    "reserve_blocks": ("none",),
                },
                options={"priority": {"aging_s": 5}},
            )
            profile = front.generator.policies.profile
            assert profile.names["order_admissions"] == "priority"
            report = await front.control.describe()
            assert report.live.preset == "priority"
            assert report.live.decisions["reserve_blocks"] == ("none",)
            assert report.live.options == {"priority": {"aging_s": 5}}

    run(main())


@pytest.mark.parametrize("way", ["use", "shadow"])
def test_what_the_engine_refused_is_loaded_anew_and_what_it_took_is_not(
    run, open_front: OpenFront, tmp_path: Path, way: str
):
    (tmp_path / "late.py").write_text(policy_module("late"))
    choice = {"decisions": {"order": "late"}}

    async def main() -> None:
        async with open_front() as front:
            library = front.control._library = Library(tmp_path, ())
            change = getattr(front.control, way)
            front.engine.policy_error = "no"
            with pytest.raises(InvalidRequest, match="no"):
                await change(choice)
            before = library.catalog.classes["late"]
            (tmp_path / "late.py").write_text(policy_module("late") + "# mended\n")

            assert not any(each.stale for each in (await front.control.describe()).installed)
            front.engine.policy_error = None
            await change(choice)

            assert library.catalog.classes["late"] is not before
            (tmp_path / "late.py").write_text(policy_module("late") + "# edited\n")
            stale = [each.name for each in (await front.control.describe()).installed if each.stale]
            assert stale == ["late"]

    run(main())


def test_a_file_that_goes_before_it_decides_leaves_the_report(
    run, open_front: OpenFront, tmp_path: Path
):
    (tmp_path / "late.py").write_text(policy_module("late"))

    async def main() -> None:
        async with open_front() as front:
            front.control._library = Library(tmp_path, ())
            assert "late" in await names(front)
            (tmp_path / "late.py").unlink()
            assert "late" not in await names(front)

    async def names(front: Front) -> set[str]:
        return {each.name for each in (await front.control.describe()).installed}

    run(main())


@pytest.mark.parametrize("may_set", [True, False])
def test_presets_may_set_the_watermark(run, open_front: OpenFront, may_set: bool):
    async def main() -> None:
        async with open_front() as front:
            front.control._may_set_watermark = may_set
            await front.control.use({"preset": "vllm-like"})
            assert front.engine.policies.watermark == (0.0 if may_set else None)
            await front.control.use({"preset": "slo"})
            assert front.engine.policies.watermark is None

    run(main())


def test_the_sources_of_plugins_stay(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front() as front:
            front.control._config = PolicyConfig(plugins_dir="/plugins", plugins=("a",), trace=True)
            await front.control.use(FAIR)

            config = front.engine.policies
            assert (config.plugins_dir, config.plugins, config.trace) == ("/plugins", ("a",), True)

    run(main())


@pytest.mark.parametrize(
    ("content", "faults"),
    [
        ({"preset": "fair-shar"}, ["there is no preset 'fair-shar' (did you mean 'fair-share'?)"]),
        ({"preset": 5}, ["preset must be a name, and is 5"]),
        ({"decisions": {"order": "lifo"}}, ["there is no policy 'lifo'"]),
        ({"decisions": {"order": 5}}, ["order must be a name or a list of names"]),
        ({"decisions": ["order"]}, ["[decisions] must be a table"]),
        ({"options": {"fcfs": 5}}, ["[options.fcfs] must be a table"]),
        ({"options": {"priority": {}}, "decision": {}}, ["there is no key 'decision'"]),
        (
            {
                "preset": "nope",
                "decisions": {"ordr": "fcfs", "victims": "fcfs"},
                "options": {"bounded-overtake": {"limit": 1 << 70}},
            },
            ["no preset 'nope'", "no decision 'ordr'", "'fcfs' does not decide", "be passed on"],
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_whole(run, open_front: OpenFront, content, faults):
    async def main() -> None:
        async with open_front() as front:
            before = front.generator.policies.profile
            with pytest.raises(InvalidRequest) as caught:
                await front.control.use(content)

            for fault in faults:
                assert fault in caught.value.message
            assert changes(front) == []
            assert front.generator.policies.profile is before
            await front.control.use(FAIR)

    run(main())


@pytest.mark.parametrize(
    "content",
    [
        {"decisions": {f"ordr{index}": "fcfs" for index in range(3000)}},
        {"decisions": {"guard": [f"max-wat{index}" for index in range(3000)]}},
        {"options": {f"p{index}": {"a": 1} for index in range(3000)}},
        {"preset": "x" * 60_000},
        {"decisions": {"order": "x" * 60_000}},
        {"preset": "priority", "options": {"priority": {"aging_s": "x" * 60_000}}},
        {"preset": "priority", "options": {"priority": {"x" * 60_000: 1}}},
        {"preset": "priority", "x" * 60_000: 1},
    ],
    ids=lambda content: next(iter(content)),
)
def test_what_is_wrong_is_told_in_bounds(run, open_front: OpenFront, content):
    async def main() -> None:
        async with open_front() as front:
            with pytest.raises(InvalidRequest) as caught:
                await front.control.use(content)
            assert len(caught.value.message) < 25_000
            with pytest.raises(UnknownPolicy) as unknown:
                await front.control.release("x" * 60_000)
            assert len(unknown.value.message) < 1000

    run(main())


def test_what_the_engine_cannot_use_changes_nothing_here(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front() as front:
            before = front.generator.policies.profile
            front.engine.policy_error = "there is no policy 'fair-share'"
            with pytest.raises(InvalidRequest, match="there is no policy 'fair-share'"):
                await front.control.use(FAIR)

            assert front.generator.policies.profile is before
            assert (await front.control.describe()).live.preset is None
            front.engine.policy_error = None
            await front.control.use(FAIR)

    run(main())


def test_gates_of_this_process_are_changed_and_tried_here(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front(policies=POLICIES) as front:
            assert not front.generator.policies.decisions.may_refuse
            await front.control.use({"decisions": {"gate": "tenant-quota"}})
            assert front.generator.policies.decisions.may_refuse

            with pytest.raises(InvalidRequest, match="'gate' fails in gate_arrivals"):
                await front.control.use({"decisions": {"gate": "gate"}})
            assert front.generator.policies.profile.gates == ("queue-limit", "tenant-quota")
            assert len(changes(front)) == 1

    run(main())


def test_a_second_change_is_refused_while_the_first_goes_on(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front() as front:
            front.engine.answers_changes = False
            first = asyncio.create_task(front.control.use(FAIR))
            await front.engine.until(lambda: changes(front))

            for second in (
                front.control.use({}),
                front.control.shadow({}),
                front.control.shadow(None),
                front.control.release("fcfs"),
            ):
                with pytest.raises(ChangeUnderWay):
                    await second
            front.engine.answer_change(changes(front)[0])
            await first

            assert len(changes(front)) == 1
            front.engine.answers_changes = True
            await front.control.use({})

    run(main())


def test_each_change_ends_as_itself_whatever_begins_as_it_ends(
    run, open_front: OpenFront, monkeypatch: pytest.MonkeyPatch
):
    async def main() -> None:
        async with open_front() as front:
            use = front.generator.policies.use
            others: list[asyncio.Task[None]] = []

            def begin_another() -> None:
                others.append(asyncio.create_task(front.control.use({})))

            def last_of_the_change(profile: Profile) -> None:
                use(profile)
                if not others:  # it begins before the caller of the first one is told
                    asyncio.get_running_loop().call_soon(begin_another)

            monkeypatch.setattr(front.generator.policies, "use", last_of_the_change)
            await front.control.use(FAIR)
            assert front.generator.policies.profile.names != DEFAULTS
            await others[0]

            assert front.generator.policies.profile.names == DEFAULTS

    run(main())


def test_what_the_front_cannot_follow_in_the_end_is_told(
    run, open_front: OpenFront, monkeypatch: pytest.MonkeyPatch
):
    def refuse(self: Profile, before: Profile) -> None:
        raise ProfileError("policy 'fcfs' cannot be used: no")

    async def main() -> None:
        async with open_front() as front:
            monkeypatch.setattr(Profile, "follow", refuse)
            with pytest.raises(InvalidRequest, match=r"engine process uses .* front .*: policy"):
                await front.control.use(FAIR)
            monkeypatch.undo()
            await front.control.use(FAIR)

    run(main())


@pytest.mark.parametrize("at", ["try_out", "follow"])
def test_what_was_built_for_a_change_that_fails_ends_aside(
    run, open_front: OpenFront, monkeypatch: pytest.MonkeyPatch, at: str
):
    ended = threading.Semaphore(0)
    threads: list[threading.Thread] = []

    class Ends:
        @hookimpl
        def gate_arrivals(self) -> None: ...

        def __del__(self) -> None:
            threads.append(threading.current_thread())
            ended.release()

    def refuse(*_: Any) -> None:
        raise ProfileError("no")

    async def main() -> None:
        async with open_front(policies={"ends": Ends}) as front:
            monkeypatch.setattr({"try_out": Library, "follow": Profile}[at], at, refuse)
            with pytest.raises(InvalidRequest):
                await front.control.use({"decisions": {"gate": "ends"}})
            for _ in range(1 if at == "try_out" else 2):  # one was for trying
                assert await asyncio.to_thread(ended.acquire, timeout=10)
            monkeypatch.undo()

    gc.disable()
    try:
        run(main())
    finally:
        gc.enable()
    assert threading.main_thread() not in threads


def test_who_asked_may_leave_in_the_middle(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front() as front:
            front.engine.answers_changes = False
            asked = asyncio.create_task(front.control.use(FAIR))
            await front.engine.until(lambda: changes(front))
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            front.engine.answer_change(changes(front)[0])
            assert front.control._change is not None
            await front.control._change

            assert front.generator.policies.profile.names["order_admissions"] == "fair-share"

    run(main())


def test_an_engine_that_dies_meanwhile_is_told(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front() as front:
            front.engine.answers_changes = False
            asked = asyncio.create_task(front.control.use(FAIR))
            await front.engine.until(lambda: changes(front))
            front.engine.die()
            with pytest.raises(EngineUnavailable):
                await asked
            with pytest.raises(EngineUnavailable):
                await front.control.describe()

    run(main())


def test_an_engine_that_loads_is_not_asked(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front(ready=False) as front:
            for question in (front.control.describe(), front.control.use(FAIR)):
                with pytest.raises(EngineUnavailable, match="still starting"):
                    await question
            assert front.engine.received == []

    run(main())


def test_a_constructor_that_hangs_is_given_up_and_streams_go_on(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front(policies=POLICIES, limit_s=0.05) as front:
            with pytest.raises(InvalidRequest, match=r"\(hanging\) were not built and .* 0\.05 s"):
                await front.control.use({"decisions": {"order": "hanging"}})
            await front.control.use(FAIR)

            assert front.generator.policies.profile.names["order_admissions"] == "fair-share"

    run(main())


def test_a_shadow_is_set_and_taken_away(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front() as front:
            await front.control.shadow(FAIR)
            report = await front.control.describe()
            assert report.shadow is not None
            assert report.shadow.profile.preset == "fair-share"
            assert report.shadow.comparisons[0].first_differed == 2
            assert report.live.preset is None
            assert front.generator.policies.profile.names == DEFAULTS

            with pytest.raises(InvalidRequest, match="no preset 'x'"):
                await front.control.shadow({"preset": "x"})
            await front.control.release("fair-share")
            await front.control.shadow(None)
            assert (await front.control.describe()).shadow is None
            with pytest.raises(UnknownPolicy):
                await front.control.release("fair-share")
            await front.control.shadow(FAIR)
            with pytest.raises(UnknownPolicy, match=r"fcfs, .*, fair-share are"):
                await front.control.release("edf")

    run(main())


def test_a_shadow_judges_arrivals_and_refuses_nobody(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front(policies=POLICIES) as front:
            quota = {
                "decisions": {"gate": "tenant-quota"},
                "options": {"tenant-quota": {"max_queued": 1}},
            }
            await front.control.shadow(quota)
            front.engine.auto = False
            for _ in range(3):
                request = GenerationRequest(token_ids=[1], tenant="a")
                await front.generator.submit(request)

            gates = await compared(front, "gate_arrivals")
            assert (gates.process, gates.asked, gates.differed) == ("front", 3, 2)
            assert front.generator.metrics.refused.get("tenant-quota", 0) == 0

            await front.control.use(FAIR)
            assert (await compared(front, "gate_arrivals")).asked == 0, "they compare anew"
            await front.control.shadow(None)
            assert not front.generator.policies.decisions.may_refuse

    async def compared(front: Front, hook: str) -> Comparison:
        shadow = (await front.control.describe()).shadow
        assert shadow is not None
        return next(each for each in shadow.comparisons if each.hook == hook)

    run(main())


def test_faults_of_a_shadow_here_are_its_own(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front(policies=POLICIES) as front:
            Gate.answers = None  # while it is tried
            await front.control.shadow({"decisions": {"gate": "gate"}})
            Gate.answers = ["no"]
            front.engine.auto = False
            for _ in range(STRIKES):
                await front.generator.submit(GenerationRequest(token_ids=[1]))

            report = await front.control.describe()
            assert report.shadow is not None
            (faults,) = report.shadow.profile.faults
            assert (faults.policy, faults.process, faults.faults) == ("gate", "front", STRIKES)
            assert report.shadow.profile.quarantined == ("gate",)
            assert report.live.faults == []
            await front.control.release("gate")
            report = await front.control.describe()
            assert report.shadow is not None
            assert report.shadow.profile.quarantined == ()

    run(main())


def test_a_shadow_that_the_engine_refuses_is_none_here(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front() as front:
            front.engine.policy_error = "no"
            with pytest.raises(InvalidRequest):
                await front.control.shadow(FAIR)

            assert front.generator.policies.shadow_state is None

    run(main())


def test_a_release_goes_to_both_processes(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front(policies=POLICIES) as front:
            await front.control.use({"decisions": {"order": "failing"}})
            ours = front.generator.policies
            strike_out(front, "failing")
            front.engine.quarantined = ("failing",)
            front.engine.hook_faults = (HookFaults("failing", "order_admissions", 4, "old"),)
            live = (await front.control.describe()).live
            assert live.quarantined == ("failing",)
            told = [(each.process, each.faults) for each in live.faults]
            assert told == [("engine", 4), ("front", STRIKES)]
            assert live.faults[0].last_error == "old"
            assert live.faults[1].last_error.startswith("ValueError('no') at ")

            await front.control.release("failing")

            assert (await front.control.describe()).live.quarantined == ()
            assert ours.quarantined == ()
            with pytest.raises(UnknownPolicy, match=r"'edf' is not in use; .*, failing are"):
                await front.control.release("edf")
            with pytest.raises(UnknownPolicy, match=r"'failin' .* \(did you mean 'failing'\?\); "):
                await front.control.release("failin")

    run(main())


def test_an_engine_that_cannot_release_says_why_and_who_can(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front() as front:
            front.engine.policy_error = "policy 'fcfs' cannot be built anew: no"
            with pytest.raises(RequestError) as caught:
                await front.control.release("fcfs")

            assert caught.value.message == (
                "In the engine process policy 'fcfs' cannot be built anew: no; "
                "the front process asks it."
            )

    run(main())


def test_a_release_that_fails_here_does_not_reach_the_engine(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front(policies={"once": Once}) as front:
            await front.control.use({"decisions": {"order": "once"}})
            strike_out(front, "once")
            Once.may_be_built = False
            with pytest.raises(InvalidRequest, match=r"In the front process .*no more.*as it was"):
                await front.control.release("once")

            assert [type(change) for change in changes(front)] == [UseProfile]
            Once.may_be_built = True
            await front.control.release("once")
            assert front.generator.policies.quarantined == ()

    run(main())


@pytest.mark.parametrize(
    ("at_engine", "told"),
    [
        (None, r"^In the front process .*no more.* \(in the shadow profile\); the engine process"),
        ("no", r"^In the engine process no; in the front process .*no more.* \(in the shadow prof"),
    ],
)
def test_a_release_that_fails_for_the_shadow_alone_reaches_the_engine(
    run, open_front: OpenFront, at_engine: str | None, told: str
):
    async def main() -> None:
        async with open_front(policies={"once": Once}) as front:
            await front.control.use({"decisions": {"order": "once"}})
            await front.control.shadow({"decisions": {"order": "once"}})
            for shadow in (False, True):
                strike_out(front, "once", shadow=shadow)
            Once.may_be_built, Once.still_to_build = False, 1
            front.engine.policy_error = at_engine
            with pytest.raises(InvalidRequest, match=told):
                await front.control.release("once")

            assert isinstance(changes(front)[-1], ReleasePolicy)
            assert front.generator.policies.quarantined == ()

    try:
        run(main())
    finally:
        Once.may_be_built = True


def test_a_release_that_fails_for_the_live_profile_is_tried_for_the_shadow(
    run, open_front: OpenFront
):
    async def main() -> None:
        async with open_front(policies={"once": Once}) as front:
            await front.control.use({"decisions": {"order": "once"}})
            await front.control.shadow({"decisions": {"order": "once"}})
            for shadow in (False, True):
                strike_out(front, "once", shadow=shadow)
            Once.may_be_built = False
            told = r"\(in the live profile\); .* \(in the shadow profile\); the engine is as it was"
            with pytest.raises(InvalidRequest, match=told):
                await front.control.release("once")

            assert not isinstance(changes(front)[-1], ReleasePolicy)

    try:
        run(main())
    finally:
        Once.may_be_built = True


def test_a_change_that_the_engine_makes_late_is_made_here_too(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front(patience_s=0.01) as front:
            front.engine.answers_changes = False
            with pytest.raises(EngineUnavailable, match=r"within 0\.01 s .* goes on"):
                await front.control.use(FAIR)
            with pytest.raises(ChangeUnderWay):
                await front.control.use({})
            await front.engine.until(lambda: changes(front))
            front.engine.answer_change(changes(front)[0])
            assert front.control._change is not None
            await front.control._change

            assert front.generator.policies.profile.names["order_admissions"] == "fair-share"
            assert front.client._questions.num_open == 0

    run(main())


def test_a_change_that_never_ends_ends_with_the_engine(run, open_front: OpenFront):
    async def main() -> None:
        async with open_front(patience_s=0.01) as front:
            front.engine.answers_changes = False
            with pytest.raises(EngineUnavailable):
                await front.control.use(FAIR)
            await front.engine.until(lambda: changes(front))
            front.engine.die()
            await front.client.lost()
            change = front.control._change
            assert change is not None
            await asyncio.wait([change])

            assert isinstance(change.exception(), EngineUnavailable)
            assert front.client._questions.num_open == 0
            assert front.generator.policies.profile.names == DEFAULTS

    run(main())
