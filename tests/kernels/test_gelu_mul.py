"""The gated activation of Gemma."""

from __future__ import annotations

import pytest
import torch

from cadenza.kernels.gelu_mul import gelu_mul
from tests.kernels.conftest import MOST_ROWS, assert_close, assert_rows_are_independent, randn

DTYPES = (torch.float32, torch.bfloat16)
# fp32: a few roundings; bf16: half a unit in its last place
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 333)], ids=str)
def test_gates_equal_double_precision(shape: tuple[int, int], dtype: torch.dtype):
    gate_up = randn(shape[0], 2 * shape[1], dtype=dtype) * 3
    gate, up = gate_up[:, : shape[1]].double(), gate_up[:, shape[1] :].double()

    found = gelu_mul(gate_up)

    assert found.dtype == dtype
    expected = torch.nn.functional.gelu(gate, approximate="tanh") * up
    assert_close("gelu_mul", found, expected, TOLERANCE[dtype])


def test_large_gates_saturate():
    gate_up = torch.tensor([[-1e4, -90.0, 0.0, 90.0, 1e4, 2.0, 2.0, 2.0, 2.0, 2.0]])

    assert gelu_mul(gate_up).tolist() == [[0.0, 0.0, 0.0, 180.0, 2e4]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [5, 333])
def test_a_row_is_the_same_in_any_batch(width: int, dtype: torch.dtype, threads: int):
    assert_rows_are_independent(gelu_mul, randn(MOST_ROWS, 2 * width, dtype=dtype) * 4)
