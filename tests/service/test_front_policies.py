"""Hostile policies in the front's hooks, under uvloop and with real signals: streams go on.

Nothing here is timed. A hook that nobody ended would hang its test.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cadenza.policies import ArrivalColumns, Refusal, ServiceView, hookimpl, standing
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.hook_guard import SignalGuard
from cadenza.policies.profile import Profile
from cadenza.policies.runner import STRIKES
from cadenza.policies.warm_up import made_up_views
from cadenza.service.errors import Overloaded, QuotaExceeded
from cadenza.service.front_policies import FrontPolicies
from cadenza.service.http.metrics import Exporter
from cadenza.service.http.traffic import Traffic
from cadenza.service.request import GenerationRequest
from cadenza.wire.messages import FaultCount

from .entering import Door


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[SignalGuard]:
    """With it the front's policies have little time, but need no rest: nobody waits for that."""
    monkeypatch.setattr(standing, "REST_S", 0.0)
    with SignalGuard() as guard:
        yield guard


class _Strict(SignalGuard):
    """Whatever takes too long is a fault, although the machine may have been busy.

    Else a hook that computes for ever is excused for as long as a busy machine is.
    """

    def taken_s(self) -> float:
        return math.inf

    def own_s(self, elapsed_s: float) -> float:
        return elapsed_s


@pytest.fixture
def strict_guard(guard: SignalGuard) -> Iterator[SignalGuard]:
    with _Strict() as strict:
        yield strict


def loops(_: Any) -> Any:
    while True:
        pass


def sleeps(_: Any) -> Any:
    time.sleep(3600)


def catches(_: Any) -> Any:
    while True:
        try:
            while True:
                time.sleep(0.001)
        except BaseException:
            continue


def goes_on(_: Any) -> Any:
    while True:
        try:
            loops(_)
        finally:
            continue  # noqa: B012 - that is what is wrong with it


def raises(_: Any) -> Any:
    raise RuntimeError("no")


def leaves(_: Any) -> Any:
    raise SystemExit(3)


def interrupts(_: Any) -> Any:
    raise KeyboardInterrupt


def writes(arrivals: ArrivalColumns) -> Any:
    arrivals.choices[:] = 0


def answers_too_long(arrivals: ArrivalColumns) -> Any:
    return [None] * (len(arrivals) + 1)


def answers_nonsense(_: Any) -> Any:
    return np.array([np.nan])


class _Unspeakable(Exception):
    def __repr__(self) -> str:
        loops(None)
        return ""


def raises_what_cannot_be_told(_: Any) -> Any:
    raise _Unspeakable


HOSTILE = [
    loops,
    sleeps,
    catches,
    goes_on,
    raises,
    leaves,
    interrupts,
    writes,
    answers_too_long,
    answers_nonsense,
    raises_what_cannot_be_told,
]


def hostile(act: Callable[[Any], Any]) -> type:
    """A policy that does so in both hooks."""

    class Hostile:
        @hookimpl
        def gate_arrivals(self, arrivals: ArrivalColumns, service: ServiceView) -> Any:
            return act(arrivals)

        @hookimpl
        def shed_load(self, waiting: ArrivalColumns, service: ServiceView) -> Any:
            return act(waiting)

    return Hostile


CHOSEN = {"gate_arrivals": "hostile", "shed_load": "hostile"}


async def text_of(front: Any, prompt: str, **fields: Any) -> str:
    generation = await front.generator.submit(GenerationRequest(text=prompt, **fields))
    async with generation:
        return "".join(
            [event.text async for batch in generation for event in batch if hasattr(event, "text")]
        )


@pytest.mark.parametrize("act", HOSTILE)
def test_streams_go_on_and_requests_are_served_whatever_a_gate_does(
    run, open_front, strict_guard, act
):
    async def main():
        policies = {"hostile": hostile(act)}
        async with open_front(guard=strict_guard, policies=policies, chosen=CHOSEN) as front:
            [letter] = front.tokenizer.encode_text("A", opened=False)
            front.engine.reply = lambda submit: [letter] * 200
            stream = asyncio.create_task(text_of(front, "other", max_tokens=200))
            await front.engine.until(lambda: bool(front.engine.running))
            front.engine.auto = False

            ours = front.generator.policies
            held: list[asyncio.Task[str]] = []
            while not ours.faults:  # the first call may be excused
                held.append(asyncio.create_task(text_of(front, "hello", max_tokens=4)))
                await front.engine.until(lambda: len(front.engine.submits()) == 1 + len(held))
            assert not stream.done()
            front.engine.resume()
            assert await asyncio.gather(*held) == ["A" * 4] * len(held)
            while not ours.quarantined:
                assert await text_of(front, "hello", max_tokens=4) == "A" * 4
            assert await text_of(front, "hello", max_tokens=4) == "A" * 4

            assert len(await stream) == 200
            assert ours.quarantined == ("hostile",)
            [count] = ours.faults
            assert (count.policy, count.hook) == ("hostile", "gate_arrivals")
            assert count.faults == STRIKES
            assert count.quarantined
            assert front.is_clean()

    run(main())


@pytest.mark.parametrize("act", HOSTILE)
def test_a_full_queue_refuses_the_newcomer_whatever_a_shedding_policy_does(strict_guard, act):
    door = Door(1, policies={"hostile": hostile(act)}, guard=strict_guard, shed_load="hostile")
    waiting = door.enter()

    while not door.policies.quarantined:
        with pytest.raises(Overloaded):
            door.enter()
        door.now_s += 1.0
    with pytest.raises(Overloaded):
        door.enter()

    assert waiting.refusal is None
    assert door.policies.quarantined == ("hostile",)


def test_other_gates_are_asked_although_one_fails():
    class NotYou:
        @hookimpl
        def gate_arrivals(self, arrivals: ArrivalColumns) -> list[Refusal]:
            return [Refusal(reason="Not you.", limit="tenant")] * len(arrivals)

    policies = {"hostile": hostile(raises), "not-you": NotYou}
    door = Door(policies=policies, gate_arrivals=["hostile", "not-you"])

    with pytest.raises(QuotaExceeded, match="Not you"):
        door.enter()


def test_a_hang_in_one_hook_ends_the_policys_say_about_that_arrival(guard):
    asked: list[str] = []

    class Hangs:
        @hookimpl
        def shed_load(self, waiting: ArrivalColumns) -> np.ndarray:
            asked.append("shed_load")
            loops(None)
            return np.zeros(len(waiting))

        @hookimpl
        def gate_arrivals(self, arrivals: ArrivalColumns) -> None:
            asked.append("gate_arrivals")

    door = Door(1, policies={"mine": Hangs}, guard=guard, shed_load="mine", gate_arrivals="mine")
    door.enter()
    with pytest.raises(Overloaded):
        door.enter()

    assert asked == ["gate_arrivals", "shed_load"]


def test_signals_and_processes_of_the_loop_work_while_hooks_are_interrupted(run, open_front, guard):
    async def main():
        def leave_and_loop(_: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            asked.append("hello")
            loops(_)

        asked: list[str] = []
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, told.set)
        policies = {"hostile": hostile(leave_and_loop)}
        async with open_front(guard=guard, policies=policies, chosen=CHOSEN) as front:
            child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print('done')")
            await text_of(front, "hello")
            await told.wait()
            assert await child.wait() == 0
            told.clear()
            os.kill(os.getpid(), signal.SIGTERM)
            await told.wait()
            assert asked == ["hello"]
        loop.remove_signal_handler(signal.SIGTERM)

    run(main())


def test_a_released_policy_is_asked_again(guard):
    fails = True

    class Sometimes:
        @hookimpl
        def gate_arrivals(self, arrivals: ArrivalColumns) -> list[Refusal]:
            if fails:
                raise ValueError
            return [Refusal(reason="No.", limit="tenant")] * len(arrivals)

    door = Door(policies={"mine": Sometimes}, guard=guard, gate_arrivals="mine")
    for _ in range(STRIKES + 1):
        door.enter().leave()
    fails = False

    door.enter().leave()
    door.policies.release("mine")
    with pytest.raises(QuotaExceeded):
        door.enter()


def test_another_profile_takes_over_with_what_waits_and_keeps_the_counts():
    door = Door(1, policies={"hostile": hostile(raises)}, gate_arrivals="hostile")
    waiting = door.enter(priority=5)
    profile = Profile({"shed_load": "lowest-priority"}, dict(BUILTIN), before=door.policies.profile)

    door.policies.use(profile)
    door.enter(priority=0)

    assert isinstance(waiting.refusal, Overloaded)
    assert [(count.policy, count.faults) for count in door.policies.faults] == [("hostile", 1)]


def test_faults_and_quarantines_of_both_processes_are_in_one_family(run, open_front):
    async def main():
        policies = {"hostile": hostile(raises)}
        async with open_front(policies=policies, chosen=CHOSEN) as front:
            front.engine.told_policy_faults = (
                FaultCount("hostile", "order_admissions", 2, False),
                FaultCount("other", "select_victims", 1, True),
            )
            front.engine.told_counters = {"policy_faults": 3}
            for _ in range(STRIKES):
                await text_of(front, "hello")
            text = (await Exporter(front.generator, Traffic(), dict).render()).decode()

            labels = 'model_name="tiny",policy="hostile"'
            name = "cadenza:policy_faults_by_hook_total"
            assert f'{name}{{hook="gate_arrivals",{labels}}} {STRIKES}.0' in text
            assert f'{name}{{hook="order_admissions",{labels}}} 2.0' in text
            assert f"cadenza:policy_quarantined{{{labels}}} 1.0" in text
            assert 'cadenza:policy_quarantined{model_name="tiny",policy="other"} 1.0' in text
            assert f'cadenza:policy_faults_total{{model_name="tiny"}} {3 + STRIKES}.0' in text

    run(main())


def test_a_shadow_has_a_tenth_of_the_time_at_most():
    """Ten arrivals, 10 ms apart; the shadow's gate takes 4 ms whenever it is asked."""
    now_s = 0.0

    class Slow:
        @hookimpl
        def gate_arrivals(self) -> None:
            nonlocal now_s
            now_s += 0.004

    policies = FrontPolicies(timer=lambda: now_s)
    policies.shadow(Profile({"gate_arrivals": "slow"}, {**BUILTIN, "slow": Slow}))
    views = made_up_views()
    for index in range(10):
        now_s = 0.010 * index
        service = replace(views["service"], step_id=index, now_s=now_s)
        policies.decisions.gate_arrivals(views["arrivals"], service)

    assert policies.shadow_state is not None
    gates = policies.shadow_state.comparisons[0]
    assert gates.hook == "gate_arrivals"
    assert 1 <= gates.asked - gates.unanswered <= 4
    assert policies.shadow(None) is not None
    assert policies.shadow_state is None
