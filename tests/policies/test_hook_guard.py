"""The signal guard, with real signals, in processes of their own: pytest has timers too.

Each script ends by itself. One that hangs is ended by the timeout of its process, and fails.
"""

import subprocess
import sys
import textwrap
import threading

import pytest

from cadenza.policies.hook_guard import NoGuard, SignalGuard

PRELUDE = """
import signal, time
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
"""


def run_script(source: str) -> None:
    script = textwrap.dedent(PRELUDE) + textwrap.dedent(source) + "\nprint('done')\n"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("done\n")


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
    runner = PolicyRunner(profile, timer=time.monotonic, guard=guard)
    decisions = Decisions(profile, runner)
    for step_id in range(4):
        step = replace(STEP, step_id=step_id)
        assert decisions.order_admissions(WAITING, step).tolist() == [10.0, 11.0]
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
tally = runner.tallies["hangs", "order_admissions"]
assert runner.quarantined == ("hangs",), tally
assert tally.calls == tally.faults == 3, tally
assert "AssertionError" not in tally.last_error, tally
assert Hangs.built == 3  # quarantined: not built a fourth time
assert signal.getsignal(signal.SIGALRM) == previous
"""


@pytest.mark.parametrize("hang", HANGS.values(), ids=HANGS)
def test_what_hangs_is_ended_three_times_and_then_not_asked(hang: str):
    run_script(DECIDE.format(hang=textwrap.indent(textwrap.dedent(hang), "    ")))


def test_a_constructor_that_hangs_is_ended_too():
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
            runner = PolicyRunner(profile, timer=time.monotonic, guard=guard)
            order = Decisions(profile, runner).order_admissions(WAITING, STEP)
        assert order.tolist() == [10.0, 11.0]
        assert runner.quarantined == ("hangs",)
        """
    )


def test_a_late_signal_does_nothing():
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


def test_an_early_signal_of_somebody_elses_does_nothing():
    run_script(
        """
        with SignalGuard() as guard:
            assert guard.run(3600, lambda: [signal.raise_signal(signal.SIGALRM)]) == [None]
        """
    )


def test_others_timers_and_signals_go_on():
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


def test_a_guarded_call_may_raise():
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
