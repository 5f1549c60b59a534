"""Work in a thread of its own, which can be given up."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial

import pytest

from cadenza.policies.preparation import Preparation

USUAL_S = sys.getswitchinterval()


def ended(preparation: Preparation[None]) -> bool:
    preparation._thread.join(10)
    return not preparation._thread.is_alive()


def test_what_it_returns_and_raises_is_in_the_future():
    def fail() -> None:
        raise SystemExit("no")

    assert Preparation(lambda: 5).future.result(10) == 5
    with pytest.raises(SystemExit, match="no"):
        Preparation(fail).future.result(10)
    assert sys.getswitchinterval() == pytest.approx(USUAL_S)


def test_others_get_the_interpreter_more_often_meanwhile():
    go = threading.Event()
    preparation = Preparation(go.wait)
    assert Preparation(lambda: 1).future.result(10) == 1
    assert sys.getswitchinterval() < USUAL_S / 10, "the other one goes on"

    go.set()

    assert preparation.future.result(10)
    assert ended(preparation)  # type: ignore[arg-type]
    assert sys.getswitchinterval() == pytest.approx(USUAL_S)


def loop(started: threading.Event) -> None:
    while True:
        started.set()


def swallow_all(started: threading.Event) -> None:
    while True:
        try:
            while True:
                started.set()
        except BaseException:
            pass


def swallow_in_all_places(started: threading.Event) -> None:
    while True:
        try:
            try:
                while True:
                    started.set()
            finally:
                len("x")
        except BaseException as error:
            repr(error)


@pytest.mark.parametrize("work", [loop, swallow_all, swallow_in_all_places])
def test_a_loop_is_ended_whatever_it_catches(work: Callable[[threading.Event], None]):
    for _ in range(20):
        started = threading.Event()
        preparation = Preparation(partial(work, started))
        assert started.wait(10)
        preparation.abandon()

        assert ended(preparation)
        assert preparation.future.cancelled()
    assert sys.getswitchinterval() == pytest.approx(USUAL_S)


def test_a_thread_may_be_abandoned_at_any_moment(capfd: pytest.CaptureFixture[str]):
    """Also when its work is just over: nothing is raised outside of it."""
    for number in range(300):
        preparation = Preparation(partial(sum, range(number * 50)))
        preparation.abandon()
        assert ended(preparation)  # type: ignore[arg-type]
    assert capfd.readouterr().err == ""


def test_what_comes_too_late_is_dropped():
    go = threading.Event()
    preparation = Preparation(go.wait)
    preparation.abandon()
    go.set()

    assert ended(preparation)  # type: ignore[arg-type]
    assert preparation.future.cancelled()


PROFILED_AFTERWARDS = """
import sys
from cadenza.policies.preparation import Preparation

def fail():
    raise ValueError

def loop():
    while True:
        pass

failed, abandoned = Preparation(fail), Preparation(loop)
abandoned.abandon()
for preparation in (failed, abandoned):
    preparation._thread.join(10)
    assert not preparation._thread.is_alive()
sys.setprofile(lambda *_: None)
(lambda: None)()
sys.setprofile(None)
"""


def test_whoever_profiles_afterwards_gets_on():
    """Python 3.11 never leaves a profiled call while an error is marked as pending anywhere."""
    subprocess.run((sys.executable, "-P", "-c", PROFILED_AFTERWARDS), check=True, timeout=30)
