"""Root mean square normalisation."""

from __future__ import annotations

import pytest
import torch

from cadenza.kernels.rms_norm import rms_norm
from tests.kernels.conftest import MOST_ROWS, assert_close, assert_rows_are_independent, randn

EPS = 1e-5
DTYPES = (torch.float32, torch.bfloat16)
# fp32: a few roundings; bf16: half a unit in its last place, as the result is rounded once
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (3, 60), (17, 576), (2, 4097)], ids=str)
def test_rows_have_unit_mean_square_times_the_weight(shape: tuple[int, int], dtype: torch.dtype):
    x = randn(*shape, dtype=dtype) * torch.logspace(-2, 2, shape[0]).unsqueeze(1).to(dtype)
    weight = randn(shape[1], dtype=dtype, seed=1)
    expected = torch.stack(
        [row / (sum(float(v) ** 2 for v in row) / len(row) + EPS) ** 0.5 for row in x.double()]
    )

    found = rms_norm(x, weight, EPS)

    assert found.dtype == dtype
    assert_close("rms_norm", found, expected * weight.double(), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [7, 576, 4097])
def test_a_row_is_the_same_in_any_batch(width: int, dtype: torch.dtype, threads: int):
    weight = randn(width, dtype=dtype, seed=1)
    x = randn(MOST_ROWS, width, dtype=dtype)
    assert_rows_are_independent(lambda rows: rms_norm(rows, weight, EPS), x)


def test_a_wider_weight_scales_before_the_result_is_rounded():
    x, weight = randn(4, 33, dtype=torch.bfloat16), 1.0 + 0.1 * randn(33)

    found = rms_norm(x, weight, 1e-6)

    assert found.dtype == torch.bfloat16
    assert torch.equal(found, rms_norm(x.float(), weight, 1e-6).bfloat16())
