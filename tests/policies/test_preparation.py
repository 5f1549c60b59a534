"""Work in a thread of its own, which can be given up."""

from __future__ import annotations

import sys
import threading

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
    assert sys.getswitchinterval() < USUAL_S / 10

    go.set()

    assert preparation.future.result(10)
    assert ended(preparation)  # type: ignore[arg-type]
    assert sys.getswitchinterval() == pytest.approx(USUAL_S)


def test_a_loop_that_catches_everything_is_ended():
    started = threading.Event()
    caught = 0

    def loop() -> None:
        nonlocal caught
        for _ in range(3):
            try:
                while True:
                    started.set()
            except BaseException:
                caught += 1

    preparation = Preparation(loop)
    assert started.wait(10)
    preparation.abandon()

    assert ended(preparation)
    assert caught >= 1
    assert preparation.future.cancelled()


def test_what_comes_too_late_is_dropped():
    go = threading.Event()
    preparation = Preparation(go.wait)
    preparation.abandon()
    go.set()

    assert ended(preparation)  # type: ignore[arg-type]
    assert preparation.future.cancelled()
