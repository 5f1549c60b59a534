"""What every policy owes the scheduler, this policy alone, and in a scheduler without a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cadenza_policy_weighted_tenants import WeightedTenants

from cadenza.policies import RequestColumns
from cadenza.policies.discovery import discover
from cadenza.testing import Driver, PolicyConformance, request_columns, step_view

STEP = step_view()


class TestConformance(PolicyConformance):
    policy = WeightedTenants


def waiting(tenants: dict[int, int], admitted: tuple[int, ...] = ()) -> RequestColumns:
    """These requests, by number, with their tenants; some have been admitted before."""
    requests = list(tenants)
    admission = np.where(np.isin(requests, admitted), 0, -1)
    return request_columns(
        len(tenants), request=requests, tenant=list(tenants.values()), admission=admission
    )


def policy(**options: Any) -> WeightedTenants:
    return WeightedTenants(WeightedTenants.Options(**options))


def test_every_tenant_has_a_first_turn_and_a_second():
    scores = policy().order_admissions(waiting({0: 1, 1: 1, 2: 2, 3: 1, 4: 2}), STEP)

    assert scores.tolist() == [1, 2, 1, 3, 2]


def test_requests_without_a_tenant_weigh_less():
    scores = policy(anonymous_weight=0.5).order_admissions(waiting({0: 0, 1: 0, 2: 1}), STEP)

    assert scores.tolist() == [2, 4, 1]


def test_a_turn_is_kept_and_who_comes_late_gets_none_of_the_past():
    mine = policy()
    mine.order_admissions(waiting({0: 1, 1: 1, 2: 1}), STEP)

    scores = mine.order_admissions(waiting({2: 1, 3: 2}), STEP)

    assert scores.tolist() == [3, 4]


def test_who_was_preempted_goes_first():
    scores = policy().order_admissions(waiting({0: 1, 1: 2}, admitted=(1,)), STEP)

    assert scores.tolist() == [1, 0]


def test_favoured_tenants_weigh_more_whatever_their_numbers_are_now():
    mine = policy(favoured="acme,globex", favoured_weight=2.0)

    scores = mine.order_admissions(waiting({0: 1, 1: 2, 2: 2}), step_view(tenants={"acme": 2}))
    assert scores.tolist() == [1, 0.5, 1]

    scores = mine.order_admissions(waiting({3: 2}), step_view(tenants={"globex": 1, "other": 2}))
    assert scores.tolist() == [2]


@pytest.mark.parametrize("name", ["anonymous_weight", "favoured_weight"])
@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_a_weight_is_above_nothing_and_finite(name: str, weight: float):
    with pytest.raises(ValueError, match=name):
        WeightedTenants.Options(**{name: weight})


def admitted(chosen: dict[str, str], **options: Any) -> list[int]:
    """Who is admitted, in order, of four requests of tenant a, one of nobody, and two of b."""
    library = discover(allowed=["weighted-tenants"])
    given = {"weighted-tenants": options} if options else {}
    driver = Driver(library.profile(chosen, given), max_num_seqs=1)
    for request, tenant in enumerate(["a", "a", "a", "a", "", "b", "b"]):
        driver.add(request, [1, 2, 3], max_tokens=1, tenant=tenant)
    driver.run()
    return driver.admitted


def test_installed_and_chosen_it_decides_the_order():
    assert admitted({}) == [0, 1, 2, 3, 4, 5, 6]
    chosen = {"order_admissions": "weighted-tenants"}
    assert admitted(chosen) == [0, 5, 1, 6, 2, 3, 4]
    assert admitted(chosen, favoured="b") == [5, 6, 0, 1, 2, 3, 4]
