"""Under a fair order each tenant keeps to the guard's bound among its own, whoever else comes.

Tenants come in bursts and leave again, so that their numbers become those of others.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from cadenza.policies import tenants as numbers
from cadenza.policies.builtin import bounded_overtake
from cadenza.policies.profile import Profile
from cadenza.scheduler.decisions import Admitted, Starving
from cadenza.scheduler.waiting import NORMAL_PER_STARVING
from cadenza.testing import Driver, oracle

SEATS, STEPS = 3, 250
PATIENCE = 4  # overtakes


class Town:
    """One tenant floods, others come for a burst; half of all prompts are in the cache."""

    def __init__(self, seed: int) -> None:
        chosen, options = {"order_admissions": "prefix-fair"}, {"prefix-fair": {"quantum": 20}}
        self.driver = Driver(Profile(chosen, options=options), max_num_seqs=SEATS, num_blocks=96)
        self.chance = random.Random(seed)
        self.tenant_of: dict[int, str] = {}
        self.prompts: dict[int, list[int]] = {}
        self.bursts = 0

    def live(self) -> None:
        for _ in range(STEPS):
            if len(self.tenant_of) - len(self.driver.ends) < 20:
                self.send("flood", self.chance.randint(0, 2))
            if self.chance.random() < 0.05:
                self.bursts += 1
                self.send(f"burst {self.bursts}", 12)
            self.driver.step()
        self.driver.run()

    def send(self, tenant: str, num: int) -> None:
        for _ in range(num):
            request = len(self.tenant_of)
            is_shared = self.chance.random() < 0.7
            prompt = [1 + self.chance.randrange(2)] * 12 if is_shared else []
            prompt += [self.chance.randrange(3, 900) for _ in range(self.chance.randint(1, 20))]
            self.driver.add(request, prompt, 1, tenant=tenant)
            self.tenant_of[request], self.prompts[request] = tenant, prompt

    def waits(self) -> Iterator[tuple[int, list[int], list[int]]]:
        """Each one that starved, and who of its tenant went first: those that did not, and did."""
        starved: dict[int, tuple[list[int], list[int]]] = {}
        for record in self.driver.decided:
            if isinstance(record, Starving):
                starved[record.request] = [], []
            elif isinstance(record, Admitted):
                if record.request in starved:
                    yield record.request, *starved.pop(record.request)
                for request, (overtakers, first) in starved.items():
                    if self.tenant_of[request] == self.tenant_of[record.request]:
                        (first if record.starving else overtakers).append(record.request)
        assert not starved


@pytest.mark.parametrize("seed", range(6))
def test_each_tenant_keeps_to_the_bound_while_others_come_and_go(
    seed: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bounded_overtake, "MAX_OVERTAKES", PATIENCE)
    monkeypatch.setattr(numbers, "MAX_IDLE", 1)
    town = Town(seed)

    town.live()

    waits = list(town.waits())
    for request, overtakers, first in waits:
        assert len(overtakers) <= NORMAL_PER_STARVING * (len(first) + 1)
        assert max(first, default=-1) < request
    assert len({town.tenant_of[request] for request, _, _ in waits}) > 2
    assert len(town.driver.scheduler._stores.table._tenants._names) <= town.bursts
    expected = {request: oracle(prompt, 1) for request, prompt in town.prompts.items()}
    assert town.driver.tokens == expected
