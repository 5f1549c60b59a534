"""The kit leaves a test session as it found it, alarms, tracers and chance included."""

from __future__ import annotations

import cProfile
import random
import signal
import sys
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest

from cadenza.policies.builtin import Fcfs
from cadenza.policies.hook_guard import NoGuard, SignalGuard
from cadenza.testing import Failure, PolicyConformance, request_columns, step_view
from cadenza.testing.costs import _counting
from cadenza.testing.purity import _watching
from cadenza.testing.trial import Subject, Trial, hook_guard, named
from tests.testing import bad_policies


class Conformance(PolicyConformance):
    policy = Fcfs


def test_an_alarm_that_was_set_goes_on():
    """pytest-timeout has one, unless it is told to use a thread."""
    previous = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 1_000.0)
    try:
        Conformance().test_answers_can_be_used()

        assert 990 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1_000
        assert signal.getsignal(signal.SIGALRM) == signal.SIG_IGN
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)


def test_outside_of_the_main_thread_nothing_is_guarded_and_all_is_checked():
    guards: list[object] = []

    def check() -> None:
        with hook_guard() as guard:
            guards.append(guard)
        Conformance().test_answers_can_be_used()

    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
    with hook_guard() as guard:
        guards.append(guard)

    assert [type(guard) for guard in guards] == [NoGuard, SignalGuard]


def test_tracers_and_chance_are_put_back():
    def trace(*_: Any) -> None: ...

    random.seed(5)
    np.random.seed(5)
    state, arrays = random.getstate(), np.random.get_state()[1].tolist()
    tracer, profiler = sys.gettrace(), sys.getprofile()
    sys.settrace(trace)
    sys.setprofile(trace)
    try:
        Conformance().test_answers_follow_from_the_questions()
        with _counting(1_000), _watching("nobody"):
            pass
        after = sys.gettrace(), sys.getprofile()
    finally:
        sys.settrace(tracer)
        sys.setprofile(profiler)

    assert after == (trace, trace)
    assert random.getstate() == state
    assert np.random.get_state()[1].tolist() == arrays


def test_a_policy_with_the_name_of_a_built_in_one_is_refused():
    impostor = type("Impostor", (Fcfs,), {})

    with pytest.raises(Failure, match="policy 'fcfs' has the name of a built-in policy"):
        Subject(impostor, {})


def test_a_hook_that_hangs_is_ended_although_it_swallows_everything():
    with hook_guard() as guard:
        trial = Trial(Subject(bad_policies.Hangs, {}, patience_s=0.02), guard)
        with pytest.raises(Failure, match=r"order_admissions\(1 waiting\): it did not come to an"):
            trial.ask("order_admissions", {"waiting": request_columns(1), "step": step_view()})


def test_requests_are_named_and_many_are_counted():
    view = request_columns(request=[7, 8, 9, 10, 11, 12, 13])

    assert named(view, view.request == 8) == "; request 8 (index 1 of 7)"
    assert named(view, view.request > 0).endswith("request 11 (index 4 of 7), 2 more")
    assert named(view, view.request < 0) == ""


def test_nobody_traces_memory_when_the_cost_has_been_checked():
    Conformance().test_the_cost_is_bounded()

    assert not tracemalloc.is_tracing()


def test_a_profile_of_the_test_itself_does_not_break_it():
    profile = cProfile.Profile()

    profile.runcall(Conformance().test_hooks_do_not_ask_for_the_time_or_sleep)
