"""Rows whose tokens are handed out together: what taps get, and what rows know."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cadenza.service.cohort import _MOST_STEPS, Cohort
from cadenza.service.engine_rows import Rows
from cadenza.service.metrics import Metrics
from cadenza.service.news import News
from cadenza.service.request_timer import RequestTimer
from cadenza.wire.messages import RowLogprobs, Submit


class Way:
    """Takes from all its taps, or from none if a token is 100 or more; raises at 999."""

    num_asked = 0

    def together(self, taps: Sequence[Tap]) -> Any:
        def take_all(tokens: Sequence[int]) -> bool:
            self.num_asked += 1
            if 999 in tokens:
                raise ValueError("broken")
            if max(tokens) >= 100:
                return False
            return all(tap.take_plain(token) for tap, token in zip(taps, tokens, strict=True))

        return take_all


class Tap:
    """Takes all tokens up to 99, raises at 666, and notes what it had and what it was told."""

    def __init__(self, way: Way | None = None) -> None:
        self.way = way
        self.taken: list[int] = []
        self.had: list[int] = []

    def take_plain(self, token: int) -> bool:
        if token == 666:
            raise ValueError("broken")
        if token < 100:
            self.taken.append(token)
        return token < 100

    def told(self, tokens: Sequence[int]) -> None:
        self.had += tokens


class Table:
    """Rows of numbers 0, 1, ..., each with its tap or none, and the cohort of the latest step."""

    def __init__(self, *taps: Tap | None) -> None:
        self.metrics = Metrics()
        self.taps = taps
        self.branches = {number: self._branch(number, tap) for number, tap in enumerate(taps)}
        self.cohort: Cohort | None = None
        self._now_s = 0.0

    def _branch(self, number: int, tap: Tap | None) -> Any:
        errors: list[Exception] = []
        times = RequestTimer(self.metrics).choice()
        row = SimpleNamespace(plain_tap=tap, times=times, tap_failed=errors.append, errors=errors)
        return SimpleNamespace(number=number, row=row, emitted=[])

    def step(self, *tokens: int, finished: bytes = b"", logprobs: Any = ()) -> list[int]:
        """Hand out one to each row; the numbers of the rows that get it themselves."""
        self._now_s += 0.01
        ends = finished or bytes(len(tokens))
        news = News((), (), [*range(len(tokens))], tokens, ends, dict.fromkeys(logprobs, LOGPROBS))
        if self.cohort is None or not self.cohort.fits(news):
            if self.cohort is not None:
                self.cohort.settle()
            self.cohort = Cohort(news, self.branches)
        return [branch.number for branch, _ in self.cohort.hand_out(news, self._now_s)]

    def known(self) -> list[tuple[list[int], int]]:
        """What each row knows that it had."""
        assert self.cohort is not None
        self.cohort.settle()
        return [(each.emitted, each.row.times.count) for each in self.branches.values()]


LOGPROBS = RowLogprobs(row=0, logprob=-1.0)


def test_rows_know_after_settling_what_taps_had_at_once():
    way = Way()
    table = Table(Tap(way), None, Tap(), Tap(way))
    assert [table.step(n, n, n, n) for n in (1, 2, 3)] == [[1]] * 3
    cohort = table.cohort
    assert [tap.taken for tap in table.taps if tap] == [[1, 2, 3]] * 3
    assert table.metrics.generation_tokens == 9
    assert table.known() == [([1, 2, 3], 3), ([], 0), ([1, 2, 3], 3), ([1, 2, 3], 3)]
    assert [tap.had for tap in table.taps if tap] == [[1, 2, 3]] * 3
    table.step(4, 4, 4, 4)

    assert table.cohort is cohort
    assert way.num_asked == 4
    assert table.known()[3] == ([1, 2, 3, 4], 4)


def test_rows_are_told_now_and_then_however_long_nothing_happens():
    table = Table(Tap())
    for token in range(_MOST_STEPS + 1):
        table.step(token)

    assert table.branches[0].emitted == [*range(_MOST_STEPS + 1)]


def test_what_a_tap_leaves_is_its_rows_after_all_that_came_before():
    way = Way()
    table = Table(Tap(way), Tap(way), Tap())
    table.step(1, 1, 1)
    table.step(2, 2, 2)

    assert table.step(3, 100, 3) == [1]
    assert [branch.emitted for branch in table.branches.values()] == [[1, 2, 3], [1, 2], [1, 2, 3]]
    assert table.step(4, 4, 4) == []
    assert table.known() == [([1, 2, 3, 4], 4), ([1, 2, 4], 3), ([1, 2, 3, 4], 4)]


@pytest.mark.parametrize("first", [True, False])
def test_what_a_way_raises_is_told_to_its_rows_alone(first):
    way = Way()
    table = Table(Tap(way), Tap(way), Tap(), Tap())
    if not first:
        table.step(1, 1, 1, 1)

    assert table.step(2, 999, 2, 666) == [0, 1, 3]
    assert [len(branch.row.errors) for branch in table.branches.values()] == [1, 1, 0, 1]
    assert table.known()[2] == ([2] if first else [1, 2], 2 - first)


@pytest.mark.parametrize("first", [True, False])
def test_what_a_tap_raises_is_told_to_its_row_and_no_token_is_taken_twice(first):
    way = Way()
    table = Table(Tap(way), Tap(way), Tap(way))
    if not first:
        table.step(1, 1, 1)

    assert table.step(2, 666, 2) == [1]
    assert [len(branch.row.errors) for branch in table.branches.values()] == [0, 1, 0]
    had = [2] if first else [1, 2]
    assert [tap.taken for tap in table.taps if tap] == [had, had[:-1], had]
    assert table.known() == [(had, len(had)), (had[:-1], len(had) - 1), (had, len(had))]


def test_ends_log_probabilities_and_rows_without_a_tap_are_left_to_rows():
    table = Table(Tap(), Tap(), Tap())
    assert table.step(1, 1, 1) == []
    assert table.step(2, 2, 2, finished=b"\0\1\0") == [1]
    assert table.step(3, 3, 3, logprobs=[2]) == [2]
    assert table.step(4, 4, 4, logprobs=[0]) == [0]
    table.branches[1].row.plain_tap = None
    assert table.step(5, 5, 5) == [1]
    table.branches[1].row.plain_tap = table.taps[1]
    assert table.step(6, 6, 6) == []
    del table.branches[0]
    table.cohort = None
    assert table.step(7, 7, 7) == []

    assert [tap.taken for tap in table.taps if tap] == [
        [1, 2, 3, 5, 6],
        [1, 3, 4, 6, 7],
        [1, 2, 4, 5, 6, 7],
    ]
    assert [tap.had for tap in table.taps if tap][1:] == [[1, 3, 4, 6, 7], [1, 2, 4, 5, 6, 7]]


def test_nothing_is_lost_where_what_a_tap_does_ends_a_row():
    class Ending(Tap):
        def take_plain(self, token: int) -> bool:
            if token == 3:
                rows.remove(1)
            return super().take_plain(token)

    rows = Rows(lambda _: None)
    table = Table(Ending(), Tap())
    submit = Submit(request=0, n=2, prompt=b"", max_tokens=9)
    submission = rows.add(submit, [branch.row for branch in table.branches.values()])
    for token in (1, 2, 3, 4):
        rows.hand_out(News((), (), [0, 1], [token, token], bytes(2), {}), (), ())
    rows.settle()

    assert [*submission.branches[0].emitted] == [1, 2, 3, 4]
    assert [tap.had for tap in table.taps if tap] == [[1, 2, 3, 4], [1, 2, 3]]
