"""The gated activation."""

from __future__ import annotations

import pytest
import torch

from cadenza.kernels.silu_mul import silu_mul
from tests.kernels.conftest import MOST_ROWS, assert_close, assert_rows_are_independent, randn

DTYPES = (torch.float32, torch.bfloat16)
# fp32: a few roundings; bf16: half a unit in its last place
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (17, 1536), (2, 333)], ids=str)
def test_gates_equal_double_precision(shape: tuple[int, int], dtype: torch.dtype):
    gate_up = randn(shape[0], 2 * shape[1], dtype=dtype) * 4
    gate, up = gate_up[:, : shape[1]].double(), gate_up[:, shape[1] :].double()

    found = silu_mul(gate_up)

    assert found.dtype == dtype
    assert_close("silu_mul", found, gate * torch.sigmoid(gate) * up, TOLERANCE[dtype])


def test_large_gates_saturate():
    gate_up = torch.tensor([[-1e4, -90.0, 0.0, 90.0, 1e4, 2.0, 2.0, 2.0, 2.0, 2.0]])

    assert silu_mul(gate_up).tolist() == [[0.0, 0.0, 0.0, 180.0, 2e4]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [5, 333, 1536])
def test_a_row_is_the_same_in_any_batch(width: int, dtype: torch.dtype, threads: int):
    assert_rows_are_independent(silu_mul, randn(MOST_ROWS, 2 * width, dtype=dtype) * 4)


def test_a_row_is_the_same_wherever_threads_split_the_batch():
    """Two hundred rows on seven threads, where torch's own silu is not."""
    gate_up = randn(200, 2 * 1536)
    alone = torch.cat([silu_mul(row) for row in gate_up.split(1)])
    before = torch.get_num_threads()
    torch.set_num_threads(7)
    together = silu_mul(gate_up)
    torch.set_num_threads(before)

    assert torch.equal(together, alone)
