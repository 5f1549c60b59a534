"""Who is tried alone, and when the next one is."""

from __future__ import annotations

from typing import Any

from cadenza.service.suspects import Suspects


class Submitted:
    """As much of a `Submission` as is judged."""

    def __init__(self) -> None:
        self.branches = {1: None}
        self.strikes = self.num_tokens = self.progress_at_death = 0


def tried_first(first: Any, second: Any) -> Suspects:
    """Two engines have died with both at the same place; the third has the first."""
    suspects = Suspects()
    for _ in range(2):
        suspects.engine_died([first, second])
        assert suspects.convict() is None
    assert suspects.next(is_idle=True, knows_ends=True) is first
    return suspects


def test_the_next_one_waits_until_the_engine_knows_that_the_one_before_was_left():
    first, second = Submitted(), Submitted()
    suspects = tried_first(first, second)
    first.branches.clear()

    assert suspects.next(is_idle=False, knows_ends=False) is None
    assert suspects.next(is_idle=True, knows_ends=False) is None
    assert suspects.next(is_idle=False, knows_ends=True) is second


def test_an_engine_that_dies_of_one_that_was_left_convicts_nobody_else():
    first, second = Submitted(), Submitted()
    suspects = tried_first(first, second)
    first.branches.clear()
    assert suspects.next(is_idle=False, knows_ends=False) is None

    suspects.engine_died([])

    assert suspects.convict() is None
    assert suspects.next(is_idle=True, knows_ends=True) is second
    second.num_tokens = 2
    assert suspects.next(is_idle=False, knows_ends=True) is None
    assert not suspects.are_tried


def test_whom_the_third_engine_dies_with_alone_is_guilty():
    first, second = Submitted(), Submitted()
    suspects = tried_first(first, second)

    suspects.engine_died([first])

    assert suspects.convict() is first
