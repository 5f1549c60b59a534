"""Soft caps: of scores and logits."""

from __future__ import annotations

import torch

from cadenza.kernels.soft_cap import soft_capped_
from tests.kernels.conftest import MOST_ROWS, assert_rows_are_independent, randn


def test_values_equal_double_precision_and_stay_within_the_cap():
    x = torch.tensor([float("-inf"), -1e5, -40.0, -1e-3, 0.0, 1.0, 7.0, 1e5, float("inf")])

    found = soft_capped_(x.clone(), 30.0)

    expected = 30.0 * torch.tanh(x.double() / 30.0)
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=30e-6)
    assert found[4] == 0.0


def test_a_row_is_the_same_in_any_batch(threads: int):
    assert_rows_are_independent(lambda x: soft_capped_(x.clone(), 2.0), randn(MOST_ROWS, 333) * 4)
