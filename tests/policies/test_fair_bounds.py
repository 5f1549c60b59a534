"""Between tenants that wait, service differs by no more than a bound, whatever each of them sends.

The bound is that of the virtual token counter (VTC, OSDI 2024): over any interval in which two
tenants are backlogged, their service differs by at most `2 * U` with

    U = max(prompt_weight * longest prompt, output_weight * M)

and M the tokens that fit the batch, which here are the outputs of all who can run together: memory
never runs short. Under `prefix-fair` whoever is in the same round counts as equal, so that at each
admission a tenant may be ahead by a quantum: `2 * (U + quantum)`. Service is what the policy
charges: a prompt, for `prefix-fair` what of it is computed, and each token generated.
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from cadenza.policies.profile import Profile
from cadenza.scheduler.decisions import Starving
from cadenza.testing import Driver

SEATS, PREFIX, SUFFIX, OUTPUT = 4, 8, 12, 4
PROMPT_WEIGHT, OUTPUT_WEIGHT, QUANTUM = 1, 2, 30
LARGEST = max(PROMPT_WEIGHT * (PREFIX + SUFFIX), OUTPUT_WEIGHT * SEATS * OUTPUT)
BOUNDS = {"fair-share": 2 * LARGEST, "prefix-fair": 2 * (LARGEST + QUANTUM)}

HEAVY = 10  # times as many requests as of each other tenant
STEPS = 200


class Tenants:
    """Several tenants, the first of them heavy, and what each was served.

    Requests are mixed: half of them begin with a prefix of their tenant, and lengths vary. The
    light ones ask for more than their share as well.
    """

    def __init__(self, order: str, num: int, *, charges_hits: bool) -> None:
        options = {
            "fair-share": {"prompt_weight": PROMPT_WEIGHT, "output_weight": OUTPUT_WEIGHT},
            "prefix-fair": {"quantum": QUANTUM, "output_weight": OUTPUT_WEIGHT},
        }
        used = {order: options[order]} if order in options else {}
        profile = Profile({"order_admissions": order}, options=used)
        self._driver = Driver(profile, max_num_seqs=SEATS, num_blocks=64)
        # It recounts the whole queue in each step, which other tests do
        self._driver.scheduler.check_invariants = lambda: None
        self._chance = random.Random(num)
        self._charges_hits = charges_hits
        self._tenant_of: dict[int, tuple[int, int]] = {}  # and the length of the prompt
        self._rate = 2 / num  # requests a step, while fewer than two are served
        self._waiting = np.zeros(num, dtype=int)
        self.served = np.zeros(num, dtype=int)
        self.backlogged = np.zeros(num, dtype=int)  # steps
        self._lowest = self._highest = self._gaps()  # since both of a pair wait
        self.worst = 0  # difference over an interval in which both wait

    def step(self) -> None:
        for tenant in range(len(self.served)):
            for _ in range(HEAVY if tenant == 0 else 1):
                if self._chance.random() < self._rate:
                    self._send(tenant)
        wait = self._waiting > 0
        self.backlogged += wait
        self._serve()
        gaps, both = self._gaps(), wait & wait[:, None]
        self._lowest = np.where(both, np.minimum(self._lowest, gaps), gaps)
        self._highest = np.where(both, np.maximum(self._highest, gaps), gaps)
        self.worst = max(self.worst, int((self._highest - self._lowest).max()))

    def _send(self, tenant: int) -> None:
        request = len(self._tenant_of)
        prompt = [tenant + 1] * PREFIX if self._chance.random() < 0.5 else []
        prompt += [self._chance.randrange(100, 900) for _ in range(self._chance.randint(1, SUFFIX))]
        outputs = self._chance.randint(1, OUTPUT)
        self._driver.add(request, prompt, outputs, tenant=str(tenant), ignore_eos=True)
        self._tenant_of[request] = tenant, len(prompt)
        self._waiting[tenant] += 1

    def _serve(self) -> None:
        report = self._driver.step()
        for request in report.admitted.tolist():
            tenant, length = self._tenant_of[request]
            found = 0 if self._charges_hits else self._driver.cached[request]
            self.served[tenant] += PROMPT_WEIGHT * (length - found)
            self._waiting[tenant] -= 1
        for request in report.requests[report.tokens >= 0].tolist():
            self.served[self._tenant_of[request][0]] += OUTPUT_WEIGHT

    def _gaps(self) -> np.ndarray:
        return self.served[:, None] - self.served


def served(order: str, num: int, *, charges_hits: bool) -> Tenants:
    tenants = Tenants(order, num, charges_hits=charges_hits)
    for _ in range(STEPS):
        tenants.step()
    assert tenants.backlogged.min() > 0.7 * STEPS
    assert not tenants._driver.preempted
    return tenants


@pytest.mark.parametrize("num", [2, 10])
@pytest.mark.parametrize("order", BOUNDS)
def test_service_of_those_that_wait_differs_by_no_more_than_the_bound(order: str, num: int):
    tenants = served(order, num, charges_hits=order == "fair-share")

    assert tenants.worst <= BOUNDS[order]
    assert tenants.served.min() > BOUNDS[order]


@pytest.mark.parametrize("num", [2, 10])
def test_in_order_of_arrival_the_heavy_tenant_takes_more_than_the_bounds(num: int):
    tenants = served("fcfs", num, charges_hits=True)

    assert tenants.worst > 2 * max(BOUNDS.values())
    assert tenants.served[0] > 4 * tenants.served[1:].max()


def test_those_that_starve_take_the_turns_of_their_own_tenant():
    """One of ten tenants overtakes 120 requests of its own for ever, and all of them starve.

    Were they helped at the cost of others, it would get a quarter of all admissions.
    """
    num, old, most = 10, 120, 12  # tenants, requests that starve, tokens of the longest prompt
    profile = Profile(
        {"order_admissions": "prefix-fair"}, options={"prefix-fair": {"quantum": QUANTUM}}
    )
    driver = Driver(profile, max_num_seqs=SEATS, num_blocks=96)
    driver.scheduler.check_invariants = lambda: None
    tenant_of: list[int] = []
    served, waiting = np.zeros(num, dtype=int), Counter()

    def send(tenant: int, prompt: list[int]) -> None:
        driver.add(len(tenant_of), prompt, 1, tenant=str(tenant), ignore_eos=True)
        tenant_of.append(tenant)
        waiting[tenant] += 1

    send(0, [*[1] * PREFIX, 500])  # so that its prefix is in the cache
    driver.run()
    waiting.clear()
    for request in range(old):
        send(0, [100 + request] * most)
    for _ in range(200):
        for tenant in range(num):
            while waiting[tenant] < (old if tenant == 0 else 0) + 4:
                send(tenant, [*[tenant + 1] * PREFIX, 500 + len(tenant_of) % 400])
        report = driver.step()
        for request in report.admitted.tolist():
            tenant = tenant_of[request]
            length = most if 0 < request <= old else PREFIX + 1
            served[tenant] += length - driver.cached[request] + OUTPUT_WEIGHT
            waiting[tenant] -= 1

    assert len({each.request for each in driver.decided if isinstance(each, Starving)}) > old // 2
    assert served.max() - served.min() <= 2 * (max(most, OUTPUT_WEIGHT * SEATS) + QUANTUM)
