"""How far a stream that can be resumed runs ahead of its reader."""

from __future__ import annotations

import random

import pytest

from cadenza.service.request import GenerationRequest
from cadenza.service.stream_flow import StreamFlow, window_of


class Granted:
    """As much of a generation as `Control` uses."""

    def __init__(self) -> None:
        self.tokens = 0
        self.num_grants = 0

    def grant(self, tokens: int) -> None:
        self.tokens += tokens
        self.num_grants += 1


def flow_of(window: int, credit: int | None = None) -> tuple[StreamFlow, Granted]:
    flow, generation = StreamFlow(window, credit), Granted()
    flow.launched(generation)  # type: ignore[arg-type]
    return flow, generation


def test_credit_follows_the_reader_in_halves_of_the_window():
    flow, granted = flow_of(8)
    assert flow.first == 8

    flow.let(3, 0)
    assert granted.tokens == 0, "5 of 8 are still out"
    flow.let(4, 0)
    assert granted.tokens == 4
    flow.let(12, 12)
    assert granted.tokens == 4, "nobody has read them"
    flow.let(12, 5)
    assert granted.tokens == 4
    flow.let(12, 2)
    assert granted.tokens == 10


def test_the_clients_own_credit_bounds_it():
    flow, granted = flow_of(8, 3)
    assert flow.first == 3
    flow.let(3, 0)
    assert granted.tokens == 0

    flow.grant(2)
    assert granted.tokens == 2, "at once: nothing else may come by"
    flow.grant(100)
    assert granted.tokens == 8, "what is out fills the window"


def test_credit_of_a_client_that_asked_for_none_has_no_effect():
    flow, granted = flow_of(8)
    flow.grant(100)
    flow.let(0, 0)
    assert granted.tokens == 0


@pytest.mark.parametrize("window", [1, 2, 7, 64])
def test_no_more_than_the_window_is_ever_ahead_and_nothing_stands_still(window: int):
    random.seed(window)
    flow, granted = flow_of(window)
    told = read = 0
    while read < 500:
        may = flow.first + granted.tokens - told
        assert told + may - read <= window
        if may and random.random() < 0.5:
            told += random.randint(1, may)
        elif read < told:
            read += random.randint(1, told - read)
        else:
            assert may, "all is read, and nothing may come"
        flow.let(told, told - read)
    assert granted.num_grants <= 2 * 500 // window + 1


@pytest.mark.parametrize(
    ("wanted", "least", "most"),
    [
        ({}, 80, 90),
        ({"n": 16}, 50, 70),
        ({"logprobs": 20}, 5, 10),
        ({"n": 16, "logprobs": 20}, 16, 16),
        ({"n": "x", "logprobs": -1}, 50, 90),
    ],
)
def test_a_window_is_what_fits_but_a_token_for_each_choice(wanted, least: int, most: int):
    assert least <= window_of(GenerationRequest(**wanted), 64 << 10) <= most
