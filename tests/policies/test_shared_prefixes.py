"""The benchmark of orders in small: what the cache is good for in `prefix-aware`, and in `fcfs`."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")

sys.path.append(BENCHMARKS)
try:
    from orders import ORDERS, Load, Served, serve
finally:
    sys.path.remove(BENCHMARKS)

SMALL = Load(
    groups=12,
    prefix=256,
    suffix=(4, 20),
    output=(2, 6),
    requests=200,
    waiting=40,
    seats=4,
    blocks=96,  # half of all prefixes
    budget=256,
)


@cache
def served(order: str) -> Served:
    return serve(order, SMALL)


def test_prefix_aware_beats_arrival_order_in_hits_and_in_the_mean_time_to_first_token():
    floor, subject = served("fcfs"), served("prefix-aware")

    # To the digit, as nothing here depends on the machine: a change of what the cache keeps shows
    assert (round(floor.hit_rate, 4), round(subject.hit_rate, 4)) == (0.4775, 0.8455)
    assert floor.mean_ttft_s > 1.3 * subject.mean_ttft_s


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_serves_the_whole_load(order: str):
    figures = served(order)

    assert 0 < figures.mean_ttft_s < figures.p99_ttft_s <= figures.most_ttft_s < figures.took_s


def test_the_load_is_the_same_whenever_it_is_made():
    first, second = SMALL.arrivals(), SMALL.arrivals()

    assert [each.prompt.tolist() for each in first] == [each.prompt.tolist() for each in second]
    assert len({tuple(each.prompt[: SMALL.prefix].tolist()) for each in first}) == SMALL.groups
