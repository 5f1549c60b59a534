"""The first line of defence: what `test_properties` and `test_reference` do at length, in a second.

Planted faults meet this first; see `mutants`.
"""

from __future__ import annotations

from tests.scheduler.random_lives import seen_in
from tests.scheduler.test_reference import agree


def test_a_few_lives_lose_and_double_nothing():
    seen_in(77_000, 400)


def test_both_schedulers_agree_on_a_few_cases():
    for seed in range(1_000_000, 1_000_012):
        agree(seed)
