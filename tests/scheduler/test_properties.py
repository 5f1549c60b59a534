"""Random lives: whatever arrives, is chunked, preempted or dropped, every token is right."""

import random

import pytest

from cadenza.policies.profile import Profile
from cadenza.scheduler.states import FinishReason
from cadenza.testing import Driver, oracle

SEEDS = 150


def random_driver(chance: random.Random) -> Driver:
    size = chance.choice([1, 2, 4, 8])
    num_blocks = chance.randint(max(2, -(-6 // size)), 30)
    seats = chance.randint(1, 8)
    return Driver(
        Profile({"reserve_blocks": chance.choice(["none", "new-token-ratio"])}),
        num_blocks=num_blocks,
        block_size=size,
        max_model_len=min(64, num_blocks * size),
        max_num_seqs=seats,
        max_num_batched_tokens=seats + size + chance.randint(0, 30),
        enable_prefix_caching=chance.random() < 0.8,
        watermark=chance.choice([0.0, 0.05]),
    )


@pytest.mark.parametrize("group", range(10))
def test_random_lives_lose_and_double_nothing(group: int):
    """The oracle computes each request alone; the pool is recounted after every step."""
    preemptions = dropped = 0
    for seed in range(group * SEEDS // 10, (group + 1) * SEEDS // 10):
        chance = random.Random(seed)
        driver = random_driver(chance)
        longest = driver.scheduler.config.max_model_len
        wanted: dict[int, list[int]] = {}
        for request in range(chance.randint(1, 30)):
            # Few distinct ids, so that prefixes are shared
            prompt = [chance.randint(1, 2) for _ in range(chance.randint(1, longest - 1))]
            max_tokens = chance.randint(1, 40)
            driver.add(request, prompt, max_tokens)
            wanted[request] = oracle(prompt, min(max_tokens, longest - len(prompt)))
            for _ in range(chance.randint(0, 3)):
                driver.step()
            if chance.random() < 0.1 and wanted:
                victim = chance.choice(list(wanted))
                driver.scheduler.drop(victim)
                if victim not in driver.ends:
                    del wanted[victim]
                    dropped += 1

        driver.run()

        for request, tokens in wanted.items():
            assert driver.tokens[request] == tokens, f"seed {seed}, request {request}"
            assert driver.ends[request] is FinishReason.LENGTH
        preemptions += driver.scheduler.statistics().preemptions
    assert preemptions > 10, "the cases no longer preempt"
    assert dropped > 0, "the cases no longer drop"
