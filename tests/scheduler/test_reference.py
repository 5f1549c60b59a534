"""The columnar scheduler and the naive one agree on every decision of thousands of small cases."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cadenza.policies.profile import Profile
from cadenza.testing import Driver
from tests.scheduler.naive import NaiveScheduler

CASES = 400
MANY_CASES = 4_000
GROUPS = 4


def agree(seed: int) -> tuple[int, int]:
    """Run one random case on both; returns its steps and preemptions."""
    chance = random.Random(seed)
    size = chance.choice([1, 2, 3, 4])
    num_blocks = chance.randint(4, 10)
    longest = min(24, num_blocks * size)
    seats = chance.randint(1, 5)
    budget = seats + size + chance.randint(0, 12)
    watermark = chance.choice([0.0, 0.1, 0.25])
    most_priority = chance.choice([0, 3])  # 0: the default policies say the same
    ranked = {"order_admissions": "priority", "select_victims": "lowest-priority"}
    driver = Driver(
        Profile({"reserve_blocks": "none", **(ranked if most_priority else {})}),
        num_blocks=num_blocks,
        block_size=size,
        max_model_len=longest,
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        watermark=watermark,
    )
    keep = int(np.ceil(watermark * num_blocks))
    naive = NaiveScheduler(num_blocks, size, longest, seats, budget, keep)
    requests = steps = preemptions = 0
    while requests < 8 or driver.scheduler.has_unfinished:
        if requests < 8 and chance.random() < 0.5:
            prompt = [chance.randint(1, 2) for _ in range(chance.randint(1, longest - 1))]
            max_tokens = chance.randint(1, 12)
            priority = chance.randint(0, most_priority)
            driver.add(requests, prompt, max_tokens, priority=priority)
            naive.add(requests, prompt, max_tokens, priority)
            requests += 1
        if requests and chance.random() < 0.05:
            victim = chance.randrange(requests)
            driver.scheduler.drop(victim)
            naive.leaving.append(victim)
        report = driver.step()
        sampled = dict(zip(report.requests.tolist(), report.tokens.tolist(), strict=True))
        plan = naive.step(sampled)
        where = f"seed {seed}, step {steps}"
        admitted = zip(report.admitted.tolist(), report.admitted_cached.tolist(), strict=True)
        assert list(admitted) == naive.admitted, where
        assert report.preempted.tolist() == naive.preempted, where
        made = driver.plan
        ours = zip(made.requests.tolist(), made.num_new.tolist(), strict=True) if made else ()
        assert list(ours) == plan, where
        counts = driver.scheduler.statistics()
        assert (counts.free_blocks, counts.cached_blocks) == (naive.free, len(naive.cached)), where
        steps += 1
        preemptions += len(naive.preempted)
        assert steps < 2000, where
    return steps, preemptions


@pytest.mark.extra
@pytest.mark.timeout(400)
def test_both_schedulers_agree_on_many_more_cases():
    steps = sum(agree(seed)[0] for seed in range(CASES, MANY_CASES))

    assert steps > 50_000


@pytest.mark.parametrize("group", range(GROUPS))
def test_both_schedulers_take_every_decision_alike(group: int):
    cases = [agree(seed) for seed in range(group, CASES, GROUPS)]

    assert sum(preemptions for _, preemptions in cases) > len(cases) // 2, (
        "too little to disagree on"
    )
