"""Which cached blocks go first: the answer as it is checked, and the policies that come along."""

from typing import Any

import numpy as np
import pytest

from cadenza.policies import CachedBlocks, StepView, hookimpl
from cadenza.policies.builtin import BUILTIN, LeavesFirst, OldestBlock
from cadenza.policies.decisions import Decisions
from cadenza.policies.profile import Profile
from cadenza.testing import Driver
from cadenza.testing.tables import cached_blocks
from tests.policies.views import STEP

BLOCKS = cached_blocks(block=[7, 3, 9], continued=[True, False, False])


def test_by_default_the_oldest_goes_first_and_nobody_is_asked():
    assert OldestBlock().rank_cached_blocks(BLOCKS, STEP).tolist() == [0.0, 1.0, 2.0]
    assert not Decisions(Profile()).ranks_blocks
    assert Decisions(Profile({"rank_cached_blocks": "leaves-first"})).ranks_blocks


def test_leaves_go_before_what_is_continued():
    assert LeavesFirst().rank_cached_blocks(BLOCKS, STEP).tolist() == [3.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("answer", "scores", "faults"),
    [
        (np.array([5, 4, 3]), [5.0, 4.0, 3.0], 0),
        (np.array([np.inf, 1.0, 2.0]), [np.inf, 1.0, 2.0], 0),
        (None, [0.0, 1.0, 2.0], 0),
        (np.array([1.0, 2.0]), [0.0, 1.0, 2.0], 1),
        (np.array([1.0, np.nan, 2.0]), [0.0, 1.0, 2.0], 1),
        (np.array([1.0, -np.inf, 2.0]), [0.0, 1.0, 2.0], 1),
        ([1.0, 2.0, 3.0], [0.0, 1.0, 2.0], 1),
    ],
    ids=repr,
)
def test_answers_are_checked(answer: Any, scores: list[float], faults: int):
    class Policy:
        @hookimpl
        def rank_cached_blocks(self, blocks: CachedBlocks, step: StepView) -> Any:
            return answer

    decisions = Decisions(Profile({"rank_cached_blocks": "mine"}, {**BUILTIN, "mine": Policy}))

    assert decisions.rank_cached_blocks(BLOCKS, STEP).tolist() == scores
    assert decisions.faults == faults


@pytest.mark.parametrize(("policy", "found"), [("oldest-block", 0), ("leaves-first", 4)])
def test_a_head_that_is_continued_outlives_a_newer_leaf(policy: str, found: int):
    """Two compute one block at once: the second goes on from the first one's, and holds its own."""
    driver = Driver(
        Profile({"rank_cached_blocks": policy, "reserve_blocks": "none"}),
        num_blocks=7,
        max_model_len=28,
    )
    driver.add(0, [1] * 5, max_tokens=1)
    driver.add(1, [1] * 4 + [2] * 5, max_tokens=4, ignore_eos=True)
    driver.step()
    driver.add(2, [3] * 5, max_tokens=1)
    driver.step()
    driver.add(3, [4] * 9, max_tokens=1)  # one block more than are free
    driver.step()
    driver.add(4, [1] * 5, max_tokens=1)
    driver.run()

    assert driver.cached[4] == found
