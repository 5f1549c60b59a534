"""Under a steady flood of better-ranked requests, every built-in order overtakes within the bound.

The flood is made for each order, out of what that order prefers, and each is flooded again without
the guard, which shows whether the flood does what it is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import pytest

from cadenza.policies.builtin import BUILTIN, bounded_overtake
from cadenza.policies.profile import Profile
from cadenza.scheduler.decisions import Starving
from cadenza.testing import Driver, oracle
from tests.scheduler.floods import POOR_TOKENS, Flood, bound, overtakers

ORDERS = [name for name, policy in BUILTIN.items() if hasattr(policy, "order_admissions")]
SEATS = 4
POOR = 6
ENOUGH = 300  # steps without a guard, in which a thousand are admitted

Fields = Mapping[str, Any]
NOTHING: Fields = MappingProxyType({})
Left = Literal["overtakes nobody", "starves", "ends every wait"]


def numbered(*prefix: int) -> Callable[[int], list[int]]:
    """Prompts that begin alike."""
    return lambda request: [*prefix, request % 900 + 1]


def long_prompt(request: int) -> list[int]:
    return [request + 1] * 40


class Case(NamedTuple):
    """What ranks last and what ranks better in an order, and what the order does by itself.

    The poor come at once, before all others. Where two tenants send, requests of the poor's own
    alternate with others.
    """

    left: Left  # to itself, without the guard
    poor: Fields = NOTHING
    rich: Fields = NOTHING
    poor_prompt: Callable[[int], list[int]] = long_prompt
    rich_prompt: Callable[[int], list[int]] = numbered(5)
    tenants: Sequence[str] = ("",)  # of the flood in turn; the poor are of the first
    options: Fields = NOTHING
    waits_s: float = float("inf")  # the longest wait, if it ends every wait


SHARED = range(1, 17)  # four blocks, in the cache as long as the flood lasts
SOON, NEVER = 10.0, float("inf")

CASES: dict[str, Case] = {
    # Nobody can rank better than an earlier arrival
    "fcfs": Case("overtakes nobody"),
    # The same within a tenant, and others do not count as overtakers
    "fair-share": Case("overtakes nobody", tenants=("own", "other")),
    # A rank of 9 ages away in 9 * aging_s
    "priority": Case(
        "ends every wait", {"priority": 9}, {"priority": 0}, options={"aging_s": 0.1}, waits_s=0.9
    ),
    "shortest-prefill": Case("starves"),
    # 40 tokens wait 20 times as long as 2, which wait for a few steps
    "hrrn": Case("ends every wait", waits_s=1.5),
    "prefix-aware": Case("starves", rich_prompt=numbered(*SHARED)),
    # Longer prefixes first within the own tenant, whose share of quanta the flood uses up
    "prefix-fair": Case(
        "starves",
        rich_prompt=numbered(*SHARED),
        tenants=("own", "other"),
        options={"quantum": 64},
    ),
    "edf": Case("starves", {"ttft_target_s": NEVER}, {"ttft_target_s": SOON}),
    "least-laxity": Case("starves", {"ttft_target_s": NEVER}, {"ttft_target_s": SOON}),
    "srpt-limited": Case("starves", {"predicted_tokens": 50}, {"predicted_tokens": 1}),
    # Four quanta wait behind one for promote_s
    "mlfq": Case("ends every wait", options={"quantum": 10, "promote_s": 1.0}, waits_s=1.0),
}


class Flooded:
    """An order under its flood."""

    def __init__(self, order: str, seats: int = SEATS) -> None:
        assert order in CASES, f"say in CASES which requests rank better under {order!r}"
        self.case = CASES[order]
        profile = Profile({"order_admissions": order}, options={order: dict(self.case.options)})
        self.driver = Driver(profile, max_num_seqs=seats, num_blocks=96)
        self.is_fair = profile.overtakes_within_tenant
        self.poor = [self.case.poor_prompt(request) for request in range(POOR)]
        tenant = self.case.tenants[0]
        # Somebody of the flood's kind was here before: the prefix that it may have is in the cache
        self.driver.add(-1, self.case.rich_prompt(-1), max_tokens=1)
        self.driver.run()
        self.began_s = self.driver.now_s
        self.flood = Flood(self.driver, self.poor, tenant=tenant, **self.case.poor)

    def step(self) -> None:
        self.flood.step(self._rich)

    def run(self, most_steps: int) -> None:
        """Until the last of the poor has ended, or for so long."""
        for _ in range(most_steps):
            if not self.flood.poor_wait:
                break
            self.step()

    def overtakes(self, request: int) -> int:
        """By whom it counts for this order."""
        others = overtakers(self.driver, request)
        return sum(self._tenant(other) == self.case.tenants[0] for other in others)

    def _tenant(self, request: int) -> str:
        return self.case.tenants[request % len(self.case.tenants)]

    def _rich(self, request: int) -> Fields:
        prompt, tenant = self.case.rich_prompt(request), self._tenant(request)
        return {"prompt": prompt, "max_tokens": 1, "tenant": tenant, **self.case.rich}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seats", [1, SEATS])
def test_no_order_overtakes_anybody_beyond_the_bound(order: str, seats: int):
    flooded = Flooded(order, seats)

    flooded.run(most_steps=3_000 // seats)

    for ahead, prompt in enumerate(flooded.poor):
        assert flooded.overtakes(ahead) <= bound(flooded.driver, ahead)
        assert flooded.driver.tokens[ahead] == oracle(prompt, POOR_TOKENS)
    starved = [record for record in flooded.driver.decided if isinstance(record, Starving)]
    assert bool(starved) == (flooded.case.left != "overtakes nobody")


@pytest.mark.parametrize("order", ORDERS)
def test_without_the_guard_the_bound_holds_only_where_nobody_is_overtaken(
    order: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bounded_overtake, "MAX_OVERTAKES", 1 << 60)
    flooded = Flooded(order)
    left = flooded.case.left

    flooded.run(ENOUGH)

    counts = [flooded.overtakes(request) for request in range(POOR)]
    if left == "overtakes nobody":
        assert counts == [0] * POOR
    else:
        assert all(count > bound(flooded.driver, ahead) for ahead, count in enumerate(counts))
    ended = [request for request in range(POOR) if request in flooded.driver.ends]
    assert ended == ([] if left == "starves" else list(range(POOR)))


@pytest.mark.parametrize("order", [name for name in CASES if CASES[name].left == "ends every wait"])
def test_an_order_that_ages_lets_nobody_in_ahead_who_comes_too_late(
    order: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bounded_overtake, "MAX_OVERTAKES", 1 << 60)
    flooded = Flooded(order)
    while flooded.driver.now_s - flooded.began_s < flooded.case.waits_s:
        flooded.step()
    late = flooded.flood.next_request

    flooded.run(ENOUGH)

    for request in range(POOR):
        assert request in flooded.driver.ends
        assert max(overtakers(flooded.driver, request)) < late
