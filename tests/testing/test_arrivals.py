"""Views of the front process made by hand."""

from __future__ import annotations

import math

import pytest

from cadenza.testing import arrival_columns, service_view


def test_what_is_not_given_is_as_of_a_request_that_has_just_arrived():
    arrivals = arrival_columns(priority=[3, 1], tenant=7)

    assert len(arrivals) == 2
    assert arrivals.priority.tolist() == [3, 1]
    assert arrivals.tenant.tolist() == [7, 7]
    assert arrivals.arrival_s.tolist() == [service_view().now_s] * 2
    assert arrivals.deadline_s.tolist() == [math.inf] * 2


@pytest.mark.parametrize(("num", "expected"), [(None, 1), (3, 3), (0, 0)])
def test_there_may_be_any_number(num: int | None, expected: int):
    assert len(arrival_columns(num, choices=2)) == expected


def test_wrong_columns_and_fields_are_named():
    with pytest.raises(ValueError, match="did you mean 'priority'"):
        arrival_columns(prioritty=1)
    with pytest.raises(ValueError, match=r"of one length, and are of \[1, 2\]"):
        arrival_columns(priority=[1], tenant=[1, 2])
    with pytest.raises(ValueError, match="there is no field of ServiceView 'free_seats'"):
        service_view(free_seats=1)


def test_a_service_is_idle_unless_it_says_otherwise():
    service = service_view(total_blocks=9, queued=2)

    assert (service.free_blocks, service.queued, service.running) == (9, 2, 0)
