"""The signal guard, with real signals, in processes of their own: pytest has timers too.

Each script ends by itself. One that hangs is killed, and fails.
"""

import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cadenza.policies.hook_guard import Drowsiness, NoGuard, SignalGuard
from tests.policies.forks import Forks

PRELUDE = '''
import os, signal, time
import numpy as np
from cadenza.policies import hookimpl
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.decisions import Decisions
from cadenza.policies.hook_guard import Interrupted, SignalGuard
from cadenza.policies.profile import Profile
from cadenza.policies.runner import PolicyRunner
from dataclasses import replace
from tests.policies.views import STEP, columns

WAITING = columns(arrival=[10, 11], overtakes=[0, 0])

def runner_of(profile, guard):
    """With a budget that an endless call has computed away by its end, however busy the machine."""
    return PolicyRunner(profile, timer=time.monotonic, guard=guard, budget_s=0.002)

def steps_until_quarantine(runner):
    """Far enough apart for a rest. On a busy machine a call may be excused once, not twice."""
    for step_id in range(20):
        if runner.quarantined:
            return
        yield replace(STEP, step_id=step_id, now_s=STEP.now_s + step_id)
    raise AssertionError(runner.tallies)
'''


RunScript = Callable[[str], None]


@pytest.fixture(scope="module")
def run_script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunScript]:
    """Run what comes after the prelude, to its end."""

    def run(source: str) -> None:
        ended = forks.run(textwrap.dedent(source) + "\nprint('done')\n")
        assert ended.status == 0, ended.output
        assert ended.output.endswith("done\n")
        assert "Exception ignored" not in ended.output

    with Forks(PRELUDE, tmp_path_factory.mktemp("scripts")) as forks:
        yield run


HANGS = {
    "loop": """
        def hang(self):
            while True:
                pass
    """,
    "sleep": """
        def hang(self):
            time.sleep(3600)
    """,
    "catches everything around a sleep": """
        def hang(self):
            while True:
                try:
                    time.sleep(3600)
                except BaseException:
                    pass
    """,
    "catches everything, twice": """
        def hang(self):
            while True:
                try:
                    while True:
                        try:
                            while True:
                                pass
                        except BaseException:
                            continue
                except BaseException:
                    pass
    """,
    "goes on in finally": """
        def hang(self):
            while True:
                try:
                    while True:
                        pass
                finally:
                    continue
    """,
    "turns it into another error": """
        def hang(self):
            try:
                while True:
                    pass
            except BaseException:
                raise ValueError from None
    """,
    "swallows it and answers": """
        def hang(self):
            try:
                while True:
                    pass
            except BaseException:
                return np.array([2.0, 1.0])
    """,
    "finalizer of a generator": """
        def hang(self):
            def generate():
                try:
                    yield
                finally:
                    while True:
                        pass
            self.kept = generate()
            next(self.kept)
            del self.kept
    """,
    "returns a generator that does not close": """
        def hang(self):
            def generate():
                try:
                    yield
                finally:
                    while True:
                        pass
            generator = generate()
            next(generator)
            return generator
    """,
    "raises what cannot be told": """
        def hang(self):
            class Untold(Exception):
                def __repr__(self):
                    while True:
                        pass
            raise Untold
    """,
    "turns it into Ctrl-C": """
        def hang(self):
            try:
                while True:
                    pass
            except BaseException:
                raise KeyboardInterrupt from None
    """,
    "recursion": """
        def hang(self):
            try:
                return self.hang()
            except BaseException:
                return self.hang()
    """,
    "key of a sort": """
        def hang(self):
            while True:
                sorted(range(100), key=lambda number: -number)
    """,
}

DECIDE = """
class Hangs:
    built = 0
    def __init__(self):
        Hangs.built += 1
        self.dirty = False
    @hookimpl
    def order_admissions(self, waiting, step):
        assert not self.dirty
        self.dirty = True
        return self.hang()
{hang}

previous = signal.getsignal(signal.SIGALRM)
with SignalGuard() as guard:
    profile = Profile({{"order_admissions": "hangs"}}, {{**BUILTIN, "hangs": Hangs}})
    runner = runner_of(profile, guard)
    decisions = Decisions(profile, runner)
    for step in steps_until_quarantine(runner):
        assert decisions.order_admissions(WAITING, step).tolist() == [10.0, 11.0]
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
tally = runner.tallies["hangs", "order_admissions"]
assert runner.quarantined == ("hangs",), tally
assert tally.faults == 3, tally
assert tally.calls == tally.faults + tally.excused, tally
assert "AssertionError" not in tally.last_error, tally
assert Hangs.built == tally.calls  # quarantined: not built again
assert signal.getsignal(signal.SIGALRM) == previous
"""


@pytest.mark.parametrize("hang", HANGS.values(), ids=HANGS)
def test_what_hangs_is_ended_three_times_and_then_not_asked(hang: str, run_script: RunScript):
    run_script(DECIDE.format(hang=textwrap.indent(textwrap.dedent(hang), "    ")))


def test_an_interruption_says_where_it_was(tmp_path: Path, run_script: RunScript):
    """In the policy's own code, also where that has called a library or made a function anew."""
    (tmp_path / "my_policy.py").write_text(
        "import time\n"
        "def count():\n"
        "    number = 0\n"
        "    while True: number += 1\n"
        "def sleep():\n"
        "    time.sleep(3600)\n"
        "def search():\n"
        "    import re\n"
        "    while True: re.sub('x', lambda found: 'y', 'x' * 500)\n"
    )
    run_script(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import my_policy

        places = {{}}
        with SignalGuard() as guard:
            for call in (my_policy.count, my_policy.sleep, my_policy.search):
                try:
                    guard.run(0.01, call)
                except Interrupted as interruption:
                    places[call.__name__] = interruption.place
        assert places == {{
            "count": "my_policy.py:4 in count",
            "sleep": "my_policy.py:6 in sleep",
            "search": places["search"],
        }}, places
        assert places["search"].startswith("my_policy.py:9 in "), places
        """
    )


def test_own_time_is_what_a_thread_computed_or_slept(run_script: RunScript):
    run_script(
        """
        def computes():
            ended_s = time.thread_time() + 0.004
            while time.thread_time() < ended_s:
                pass

        def timed(call):
            time.sleep(0.002)  # so that the clocks are read anew
            started_s = time.monotonic()
            guard.run(0.5, call)
            return time.monotonic() - started_s

        with SignalGuard() as guard:
            assert timed(computes) >= 0.004
            assert 0.004 <= guard.own_s(3600.0) < 3600.0
            timed(lambda: time.sleep(0.003))
            assert guard.own_s(3600.0) == 3600.0  # it gave up the processor by itself
        """
    )


def test_a_constructor_that_hangs_is_ended_too(run_script: RunScript):
    run_script(
        """
        class Hangs:
            built = 0
            def __init__(self):
                Hangs.built += 1
                while Hangs.built > 1:
                    pass
            @hookimpl
            def order_admissions(self, waiting, step):
                while True:
                    pass

        with SignalGuard() as guard:
            profile = Profile({"order_admissions": "hangs"}, {**BUILTIN, "hangs": Hangs})
            runner = runner_of(profile, guard)
            decisions = Decisions(profile, runner)
            for step in steps_until_quarantine(runner):
                assert decisions.order_admissions(WAITING, step).tolist() == [10.0, 11.0]
        tally = runner.tallies["hangs", "order_admissions"]
        assert tally.faults == 3, tally
        assert "cannot be built anew: takes longer than 2 ms" in tally.last_error, tally
        assert tally.calls <= 2, tally
        """
    )


def test_a_finalizer_that_hangs_is_ended_where_the_instance_is_replaced(run_script: RunScript):
    run_script(
        """
        class Hangs:
            ended = 0
            @hookimpl
            def order_admissions(self, waiting, step):
                while True:
                    pass
            def __del__(self):
                Hangs.ended += 1
                while True:
                    pass

        with SignalGuard() as guard:
            profile = Profile({"order_admissions": "hangs"}, {**BUILTIN, "hangs": Hangs})
            runner = runner_of(profile, guard)
            decisions = Decisions(profile, runner)
            for step in steps_until_quarantine(runner):
                ended = Hangs.ended
                asked = "hangs", "order_admissions"
                calls = runner.tallies[asked].calls if runner.tallies else 0
                assert decisions.order_admissions(WAITING, step).tolist() == [10.0, 11.0]
                assert Hangs.ended - ended == (calls > 0)
            os._exit(0 if print("done", flush=True) is None else 1)  # not that one, unguarded
        """
    )


DISARMS = {
    "another handler": "signal.signal(signal.SIGALRM, lambda *_: None)",
    "no handler": "signal.signal(signal.SIGALRM, signal.SIG_IGN)",
    "a blocked signal": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])",
    "no timer": "signal.setitimer(signal.ITIMER_REAL, 0)",
    "another timer": "signal.setitimer(signal.ITIMER_REAL, 3600)",
    "another timer that looks like it": "signal.setitimer(signal.ITIMER_REAL, 3600, 0.001)",
    "an alarm": "signal.alarm(3600)",
}


@pytest.mark.parametrize("statement", DISARMS.values(), ids=DISARMS)
def test_what_a_call_takes_from_the_guard_is_back_before_the_next(
    statement: str, run_script: RunScript
):
    run_script(
        f"""
        class Disarms:
            @hookimpl
            def order_admissions(self, waiting, step):
                {statement}
                return np.array([2.0, 1.0])

        def hang():
            while True:
                pass

        with SignalGuard() as guard:
            profile = Profile({{"order_admissions": "mine"}}, {{**BUILTIN, "mine": Disarms}})
            runner = runner_of(profile, guard)
            decisions = Decisions(profile, runner)
            assert decisions.order_admissions(WAITING, STEP).tolist() == [10.0, 11.0]
            assert "took away" in runner.tallies["mine", "order_admissions"].last_error
            try:
                guard.run(0.01, hang)
            except Interrupted:
                pass
            else:
                raise AssertionError
        """
    )


def test_signals_that_shall_not_interrupt_do_so_again_in_the_next_call(run_script: RunScript):
    run_script(
        """
        def read():
            os.read(os.pipe()[0], 1)
        with SignalGuard() as guard:
            guard.run(0.01, signal.siginterrupt, signal.SIGALRM, False)
            try:
                guard.run(0.01, read)
            except Interrupted:
                pass
            else:
                raise AssertionError
        """
    )


def test_a_call_that_raises_and_one_that_is_interrupted_give_the_signal_back_too(
    run_script: RunScript,
):
    run_script(
        """
        def disarm():
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            raise ZeroDivisionError
        def hang():
            try:
                while True:
                    pass
            finally:
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        with SignalGuard() as guard:
            for call, error in ((disarm, ZeroDivisionError), *[(hang, Interrupted)] * 2):
                try:
                    guard.run(0.01, call)
                except error:
                    pass
                else:
                    raise AssertionError
        """
    )


POLL_S = 0.001


class TestDrowsiness:
    """On numbers as a thread would show them: seconds, seconds computed, voluntary switches."""

    def verdicts(self, *looks: tuple[float, float, int]) -> list[bool]:
        drowsiness = Drowsiness()
        return [drowsiness.sleeps(*look) for look in looks]

    def test_who_gives_up_the_processor_and_comes_at_once_sleeps(self):
        looks = [(POLL_S * look, 1e-5 * look, look) for look in range(4)]
        assert self.verdicts(*looks) == [False, False, True, True]

    def test_who_is_kept_from_running_gives_up_nothing(self):
        assert not any(self.verdicts(*[(POLL_S * look, 0.0, 5) for look in range(9)]))

    def test_who_computes_in_between_waits_for_a_lock(self):
        looks = [(POLL_S * look, 0.4 * POLL_S * look, look) for look in range(9)]
        assert not any(self.verdicts(*looks))

    @pytest.mark.parametrize("polls", [0.2, 1.8, 5])
    def test_who_comes_late_or_has_just_come_is_kept_waiting(self, polls: float):
        looks = [(polls * POLL_S * look, 0.0, look) for look in range(9)]
        assert not any(self.verdicts(*looks))

    def test_one_idle_look_is_not_enough(self):
        looks = [(0.0, 0.0, 0), (0.001, 0.0, 1), (0.002, 0.0009, 2), (0.003, 0.0009, 3)]
        assert not any(self.verdicts(*looks))


def test_a_late_signal_does_nothing(run_script: RunScript):
    """Neither between calls, nor where the call has returned and the guard has not."""
    run_script(
        """
        with SignalGuard() as guard:
            # C code, so that its signals are seen when it has returned
            assert guard.run(1e-6, signal.raise_signal, signal.SIGALRM) is None
            assert guard.run(1e-6, sum, range(10**7)) == 49999995000000
            guard._started_s = float("-inf")  # overdue
            signal.raise_signal(signal.SIGALRM)
            (lambda: signal.raise_signal(signal.SIGALRM))()
        """
    )


def test_an_early_signal_of_somebody_elses_does_nothing(run_script: RunScript):
    run_script(
        """
        with SignalGuard() as guard:
            assert guard.run(3600, lambda: [signal.raise_signal(signal.SIGALRM)]) == [None]
        """
    )


def test_others_timers_and_signals_go_on(run_script: RunScript):
    run_script(
        """
        seen = []
        signal.signal(signal.SIGALRM, lambda *_: seen.append("alarm"))
        signal.signal(signal.SIGUSR1, lambda *_: seen.append("usr1"))
        with SignalGuard() as guard:
            guard.run(3600, signal.raise_signal, signal.SIGUSR1)
        signal.raise_signal(signal.SIGALRM)
        assert seen == ["usr1", "alarm"]
        """
    )


def test_a_guarded_call_may_raise(run_script: RunScript):
    run_script(
        """
        def interrupt():
            raise KeyboardInterrupt
        with SignalGuard() as guard:
            for error, call in ((ZeroDivisionError, lambda: 1 / 0), (KeyboardInterrupt, interrupt)):
                try:
                    guard.run(3600, call)
                except error:
                    pass
                else:
                    raise AssertionError
                assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        """
    )


def test_only_the_main_thread_can_take_the_signal():
    errors: list[Exception] = []

    def enter() -> None:
        try:
            with SignalGuard():
                pass
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert len(errors) == 1


def test_no_guard_only_calls():
    assert NoGuard().run(0.0, divmod, 7, 4) == (1, 3)
