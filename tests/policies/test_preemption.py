"""Which victims are swapped, on hand-made costs."""

import numpy as np
import pytest

from cadenza.policies import PreemptionCosts
from cadenza.policies.builtin import CheapestWayBack, Recompute, Swap
from cadenza.policies.builtin.cost_model import HYSTERESIS
from tests.policies.views import STEP, columns


def costs(
    recompute_s: list[float],
    swap_s: list[float],
    blocks: list[int] | None = None,
    free_host_blocks: int = 100,
) -> PreemptionCosts:
    return PreemptionCosts(
        recompute_tokens=np.full(len(swap_s), 64),
        recompute_s=np.array(recompute_s),
        swap_blocks=np.array(blocks or [4] * len(swap_s)),
        swap_s=np.array(swap_s),
        free_host_blocks=free_host_blocks,
    )


def chosen(policy: type, given: PreemptionCosts) -> list[bool]:
    victims = columns(request=list(range(len(given.swap_s))))
    answer = policy().choose_preemption(victims, given, STEP)
    assert answer.dtype == np.bool_
    return answer.tolist()


def test_recompute_never_swaps_and_swap_always_does():
    given = costs([1.0, 0.0], [0.5, np.inf], free_host_blocks=0)

    assert chosen(Recompute, given) == [False, False]
    assert chosen(Swap, given) == [True, True]


def test_a_swap_must_be_cheaper_by_the_hysteresis():
    threshold = 1.0 / (1 + HYSTERESIS)

    assert chosen(CheapestWayBack, costs([1.0] * 3, [0.99 * threshold, 1.01 * threshold, 1.0])) == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("recompute_s", "swap_s"),
    [(0.0, 0.0), (0.0, np.inf), (5.0, np.inf), (0.0, 1e-6)],
)
def test_what_is_not_measured_is_recomputed(recompute_s: float, swap_s: float):
    assert chosen(CheapestWayBack, costs([recompute_s], [swap_s])) == [False]


def test_victims_claim_host_blocks_in_order_and_the_first_that_does_not_fit_ends_it():
    given = costs([9.0] * 4, [1.0] * 4, blocks=[4, 3, 4, 1], free_host_blocks=8)

    assert chosen(CheapestWayBack, given) == [True, True, False, False]


def test_a_victim_that_is_recomputed_claims_nothing():
    given = costs([9.0, 0.5, 9.0], [1.0] * 3, blocks=[4, 100, 4], free_host_blocks=8)

    assert chosen(CheapestWayBack, given) == [True, False, True]


def test_without_a_host_pool_everybody_is_recomputed():
    assert chosen(CheapestWayBack, costs([9.0], [1.0], free_host_blocks=0)) == [False]
