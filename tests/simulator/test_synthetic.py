"""Made-up traces have the shape that was asked for."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from cadenza.simulator.errors import SimulatorError
from cadenza.simulator.synthetic import Shape, shape_of, synthetic

MANY = Shape(requests=4000, rate=10, prompt=100, output=50, tail=0.5)


def gaps(shape: Shape) -> np.ndarray:
    return np.diff([each.arrival_s for each in synthetic(shape, 1).requests])


def test_rate_and_bursts():
    poisson, bursts = gaps(MANY), gaps(MANY._replace(burst=4))

    assert poisson.mean() == pytest.approx(0.1, rel=0.05)
    assert poisson.std() / poisson.mean() == pytest.approx(1, rel=0.1)
    assert bursts.std() / bursts.mean() == pytest.approx(4, rel=0.2)


def test_lengths_and_their_tail():
    even, heavy = (
        np.array([each.output_tokens for each in synthetic(MANY._replace(tail=tail), 1).requests])
        for tail in (0, 1.5)
    )

    assert set(even.tolist()) == {50}
    assert heavy.mean() == pytest.approx(50, rel=0.15)
    assert np.percentile(heavy, 99) > 5 * heavy.mean()


def test_prefixes_are_shared_by_a_share():
    trace = synthetic(MANY._replace(prefixes=3, prefix=64, shared=0.25), 1)
    shared = Counter(each.blocks for each in trace.requests)

    assert len(shared) == 4
    assert shared.pop(()) / 4000 == pytest.approx(0.75, abs=0.03)
    assert all(len(blocks) == 4 for blocks in shared)


def test_tenants_are_skewed():
    trace = synthetic(MANY._replace(tenants=4, skew=1), 1)
    counts = Counter(each.tenant for each in trace.requests)

    assert counts["tenant-1"] / counts["tenant-4"] == pytest.approx(4, rel=0.2)


def test_a_seed_makes_a_trace():
    assert synthetic(MANY, 3) == synthetic(MANY, 3)
    assert synthetic(MANY, 3) != synthetic(MANY, 4)


def test_a_shape_is_written_in_pairs():
    assert shape_of("rate=2.5,tenants=3") == Shape(rate=2.5, tenants=3)
    assert shape_of("") == Shape()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rates=2", "did you mean 'rate'"),
        ("rate=x", "rate must be a number"),
        ("rate=nan", "rate must be from"),
        ("tenants=1.5", "tenants must be a whole number"),
        ("shared=2", "shared must be from 0 to 1"),
    ],
)
def test_what_is_no_shape_is_told(text: str, said: str):
    with pytest.raises(SimulatorError, match=said):
        shape_of(text)
