"""Products whose rows keep their bits in any batch."""

from __future__ import annotations

import pytest
import torch

from cadenza.kernels.linear import linear, pack
from tests.kernels.conftest import assert_close, randn, same_bits
from tests.kernels.on_triton.conftest import DEVICE, TOLERANCES, each_dtype, nans


@each_dtype
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 1, 1), (70, 65, 130), (3, 9, 64)])
def test_products_agree_with_fp64(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    x = nans(rows, inputs + 3, dtype=dtype)[:, :inputs]
    x.copy_(randn(rows, inputs, seed=2))
    weight = randn(outputs, inputs, dtype=dtype, seed=1).to(DEVICE)
    packed = pack(weight, invariant=True)

    expected = (x.double() @ weight.double().t()).to(torch.float32)
    tolerance = max(TOLERANCES[dtype], 1e-5)
    assert_close("product", linear(x, packed), expected.to(dtype), tolerance)
    assert_close("fp32", linear(x, packed, torch.float32), expected, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_has_the_same_bits_in_any_batch(dtype: torch.dtype) -> None:
    """In tiles that are full and those that are not, and wherever it stands."""
    x = randn(75, 130, dtype=dtype).to(DEVICE)
    weight = pack(randn(70, 130, dtype=dtype, seed=1).to(DEVICE), invariant=True)
    together = linear(x, weight)

    for rows in ([3], [3, 70], [70, 3, 1], list(range(60, 75))):
        assert same_bits(linear(x[rows], weight), together[rows].contiguous())


def test_misfits_are_refused() -> None:
    weight = pack(nans(4, 8), invariant=True)

    with pytest.raises(ValueError, match="shapes"):
        linear(nans(2, 7), weight)
    with pytest.raises(ValueError, match="dtypes"):
        linear(nans(2, 8).half(), weight)
    with pytest.raises(ValueError, match="contiguous"):
        linear(nans(8, 2).T, weight)
    assert linear(nans(0, 8), weight).shape == (0, 4)
