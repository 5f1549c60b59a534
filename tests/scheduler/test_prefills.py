"""How prompts that are being computed share the tokens of a step."""

from __future__ import annotations

import numpy as np
import pytest

from cadenza.scheduler.prefills import UNIT, Prefills, fair_shares

NO_CHUNK = 1 << 30


class Steps:
    """Prompts that are computed step by step."""

    def __init__(self) -> None:
        self._prefills = Prefills()
        self.remaining: dict[int, int] = {}  # by admission

    def step(self, budget: int, chunk: int = NO_CHUNK) -> dict[int, int]:
        """What each gets, if anything. As in the scheduler, a last token is not shared out."""
        keys = [key for key, left in self.remaining.items() if left > 1]
        left = np.array([self.remaining[key] for key in keys], dtype=np.int64)
        shares = self._prefills.split(np.array(keys), left, budget, chunk).tolist()
        for key, share in zip(keys, shares, strict=True):
            self.remaining[key] -= share
        return {key: share for key, share in zip(keys, shares, strict=True) if share}


def test_equal_prompts_are_computed_one_after_another():
    steps = Steps()
    steps.remaining = {0: 12, 1: 12, 2: 12}

    assert [steps.step(10) for _ in range(4)] == [{0: 10}, {0: 2, 1: 8}, {1: 4, 2: 6}, {2: 6}]


def test_a_short_prompt_comes_before_a_long_one():
    steps = Steps()
    steps.remaining = {0: 100}
    assert steps.step(10) == {0: 10}
    steps.remaining[1] = 8

    assert steps.step(10) == {1: 8, 0: 2}


@pytest.mark.parametrize(
    ("budget", "long", "short"), [(2, 20, 2), (10, 100, 10), (24, 600, 24), (128, 4200, 64)]
)
def test_no_stream_of_short_prompts_keeps_a_long_one_out(budget: int, long: int, short: int):
    """They come as fast as they are computed, and more of them than a step has tokens."""
    steps = Steps()
    steps.remaining = {0: long}
    for key in range(1, 4000):
        steps.remaining[key] = short
        steps.step(budget)
        if steps.remaining[0] <= 1:
            break

    assert steps.remaining[0] <= 1
    assert key <= 2 * long * long / short, "some time after equal shares would have"


def test_no_more_is_owed_than_is_left_to_compute():
    """Whoever leaves, and however long somebody is amid a prompt."""
    chance = np.random.default_rng(5)
    steps = Steps()
    steps.remaining = {0: 100_000}
    for key in range(1, 1500):
        steps.remaining[key] = int(chance.integers(2, 60))
        if chance.random() < 0.3:
            steps.remaining.pop(key - 2, None)
        steps.step(20, NO_CHUNK)
        prefills = steps._prefills
        owed = sum(prefills._due.values()) + sum(prefills._due_of_complete.values())
        whole = sum(left for left in steps.remaining.values() if left > 1)
        assert owed <= max(whole * UNIT, sum(prefills._due.values()))


def test_what_is_complete_early_goes_on_taking_its_shares():
    """Or of 0 and 2 the first would count as nearly complete, as no one took from it."""
    steps = Steps()
    steps.remaining = {0: 40, 1: 20}
    assert steps.step(20) == {1: 20}  # of which its shares had 10

    steps.remaining[2] = 26
    assert steps.step(21) == {2: 21}, "0 had 10 tokens of its shares and has 30 to go"
    assert steps.step(26) == {2: 5, 0: 21}


def test_a_prompt_that_lost_its_seat_begins_anew():
    steps = Steps()
    steps.remaining = {0: 30, 1: 40}
    steps.step(20)  # shares of 10 leave 20 and 30
    del steps.remaining[0]
    steps.step(4)  # 26 are left of the shares of 1

    steps.remaining[0] = 30
    assert steps.step(4) == {1: 4}
    steps.remaining[0] = 20
    assert steps.step(4) == {1: 4}, "a place once taken is not bettered"


def test_a_complete_prompt_that_is_computed_again_begins_anew():
    steps = Steps()
    steps.remaining = {0: 10, 1: 30, 2: 60}
    assert steps.step(10) == {0: 10}

    steps.remaining[0] = 50
    assert steps.step(10) == {1: 10}


def test_nobody_gets_more_than_a_chunk():
    steps = Steps()
    steps.remaining = {0: 50, 1: 9, 2: 50}

    assert steps.step(20, chunk=8) == {1: 8, 0: 8, 2: 4}


def test_a_last_token_that_nobody_shares_out_holds_nobody_up():
    steps = Steps()
    steps.remaining = {0: 11, 1: 30}
    assert steps.step(10) == {0: 10}  # its last token is computed beside the decodes

    assert steps.step(10) == {1: 10}


@pytest.mark.parametrize("seed", range(100))
def test_none_is_complete_later_than_with_equal_shares(seed: int):
    chance = np.random.default_rng(seed)
    prompts = {key: int(size) for key, size in enumerate(chance.geometric(0.05, 25) + 1)}
    arrivals = np.sort(chance.integers(0, 40, len(prompts)))
    steps, shared = Prefills(), dict[int, int]()
    remaining: dict[int, int] = {}
    ended, ended_by_shares = {}, {}
    for step in range(500):
        for key in np.flatnonzero(arrivals == step).tolist():
            remaining[key], shared[key] = prompts[key], prompts[key] * UNIT
        budget = int(chance.integers(0, 30))
        if remaining:
            keys, left = np.array(list(remaining)), np.array(list(remaining.values()))
            left -= steps.split(keys, left, budget, NO_CHUNK)
            ended |= dict.fromkeys(keys[left <= 1].tolist(), step)
            remaining = {k: n for k, n in zip(keys.tolist(), left.tolist(), strict=True) if n > 1}
        if shared:
            # What does not divide goes to those with the least to compute
            order = sorted(shared, key=lambda key: (shared[key], key))
            left = np.array([shared[key] for key in order])
            left -= fair_shares(left, budget * UNIT)
            ended_by_shares |= {k: step for k, n in zip(order, left.tolist(), strict=True) if not n}
            shared = {k: n for k, n in zip(order, left.tolist(), strict=True) if n}

    assert len(ended) == len(ended_by_shares) == len(prompts)
    assert all(ended[key] <= ended_by_shares[key] for key in prompts)
    assert sum(ended.values()) < sum(ended_by_shares.values())


@pytest.mark.parametrize(
    ("wanted", "budget", "shares"),
    [
        ([], 8, []),
        ([5], 8, [5]),
        ([50], 8, [8]),
        ([2, 50], 8, [2, 6]),
        ([50, 2], 8, [6, 2]),
        ([50, 50], 8, [4, 4]),
        ([50, 50, 50], 8, [3, 3, 2]),
        ([1, 2, 3], 8, [1, 2, 3]),
        ([9, 1, 9, 9], 10, [3, 1, 3, 3]),
        ([9, 9], 0, [0, 0]),
    ],
)
def test_shares_are_max_min_fair(wanted: list[int], budget: int, shares: list[int]):
    assert fair_shares(np.array(wanted, dtype=np.int64), budget).tolist() == shares


def test_shares_never_exceed_the_budget_and_never_waste_it():
    chance = np.random.default_rng(0)
    for _ in range(500):
        wanted = chance.integers(1, 40, chance.integers(1, 9))
        budget = int(chance.integers(0, 100))

        shares = fair_shares(wanted, budget)

        assert (shares <= wanted).all()
        assert shares.sum() == min(budget, wanted.sum())
        unserved = shares < wanted
        if unserved.any():
            assert shares.max() <= shares[unserved].min() + 1
