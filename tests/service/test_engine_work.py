"""Rows, and the engines that come and go while they wait for their ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cadenza.service.engine_work import EngineWork
from cadenza.wire.messages import Cancel, Decision, Submit, ToEngine

PROMPT = np.array([1, 2, 3], dtype=np.int32).tobytes()


class Row:
    """Keeps how it failed."""

    plain_tap = None

    def __init__(self) -> None:
        self.failures: list[str] = []

    def on_failed(self, message: str, *, retryable: bool) -> None:
        assert not retryable
        self.failures.append(message)


class Engines:
    """One engine after another: what each is sent."""

    def __init__(self) -> None:
        self.sent: list[ToEngine] = []
        self.shown: list[Decision] = []
        self.work = EngineWork(self._deliver, self.shown.extend)
        self.rows: dict[int, Row] = {}

    def _deliver(self, message: ToEngine) -> int:
        self.sent.append(message)
        return len(self.sent)

    def submit(self, *numbers: int) -> None:
        for number in numbers:
            self.rows[number] = Row()
            submit = Submit(request=number, prompt=PROMPT, max_tokens=9)
            self.work.submit(submit, [self.rows[number]])

    def begin(self) -> None:
        self.sent.clear()
        self.work.engine_ready()

    def die(self, received: int) -> Sequence[Decision]:
        """After the engine has handled so many messages."""
        told = self.work.engine_lost("it died", received, 0)
        self.work.convict()
        return told

    def requests(self) -> list[int]:
        return [each.request for each in self.sent if isinstance(each, Submit)]


def with_two_suspects() -> Engines:
    """Two engines have died before either had a token; the third was sent the first of them."""
    engines = Engines()
    engines.submit(1, 2)
    for _ in range(2):
        engines.begin()
        assert engines.requests() == [1, 2]
        engines.die(received=0)
    engines.begin()
    assert engines.requests() == [1]
    return engines


def test_after_one_that_was_left_the_next_suspect_waits_until_the_engine_has_handled_that():
    engines = with_two_suspects()
    engines.work.cancel(1)
    assert engines.sent[1:] == [Cancel(1)]

    engines.work.has_handled(1, is_idle=False)
    assert engines.requests() == [1]

    engines.work.has_handled(2, is_idle=False)
    assert engines.requests() == [1, 2]


def test_nobody_else_is_guilty_where_an_engine_dies_of_one_that_was_left():
    engines = with_two_suspects()
    engines.work.cancel(1)
    engines.work.has_handled(1, is_idle=False)
    [told] = engines.die(received=1)
    assert (told.kind, told.request, told.facts["reason"]) == ("finished", 1, "aborted")

    engines.begin()

    assert engines.requests() == [2]
    assert engines.rows[2].failures == []


def test_whom_a_third_engine_dies_with_alone_is_guilty():
    engines = with_two_suspects()
    engines.die(received=0)

    assert "failed three times at the same place" in engines.rows[1].failures[0]
    engines.begin()
    assert engines.requests() == [2]
