"""Products with weights of eight bits."""

from __future__ import annotations

import pytest
import torch

from cadenza.kernels.linear import linear, pack_coded
from cadenza.kernels.quantised_linear import (
    QuantisedWeight,
    quantise,
    quantised_linear,
    quantised_linear_reference,
)
from tests.kernels.conftest import assert_close, randn, same_bits
from tests.kernels.on_triton.conftest import DEVICE, DTYPES, TOLERANCES, each_dtype, nans

each_code = pytest.mark.parametrize("code", [torch.int8, torch.float8_e4m3fn], ids=str)


def weight_of(outputs: int, inputs: int, code: torch.dtype) -> QuantisedWeight:
    codes, scales = quantise(randn(outputs, inputs, seed=1), code)
    return QuantisedWeight(codes.to(DEVICE), scales.to(DEVICE))


@each_code
@each_dtype
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 1, 1), (17, 65, 130), (3, 9, 64)])
def test_products_agree_with_the_reference(
    rows: int, outputs: int, inputs: int, dtype: torch.dtype, code: torch.dtype
) -> None:
    x = nans(rows, inputs + 3, dtype=dtype)[:, :inputs]
    x.copy_(randn(rows, inputs, seed=2))
    weight = weight_of(outputs, inputs, code)

    found = quantised_linear(x, weight)

    # some sums are nearly 0 beside the terms that they are made of
    tolerance = max(TOLERANCES[dtype], 1e-5)
    assert_close("product", found, quantised_linear_reference(x, weight), tolerance)


def test_every_fp8_code_is_read_as_the_number_that_it_is() -> None:
    """One input of 1 for each code; NaN's two are not among them."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 0x7F) != 0x7F].view(torch.float8_e4m3fn).unsqueeze(1)
    weight = QuantisedWeight(codes.to(DEVICE), torch.ones(254, device=DEVICE))

    for dtype in DTYPES:
        found = quantised_linear(torch.ones(1, 1, dtype=dtype, device=DEVICE), weight)
        assert torch.equal(found[0].float().cpu(), codes.float().squeeze(1))


@each_code
def test_a_row_has_the_same_bits_in_any_batch_where_that_is_asked_for(code: torch.dtype) -> None:
    x = randn(20, 130, dtype=torch.bfloat16).to(DEVICE)
    weight = pack_coded(randn(70, 130, seed=1).to(DEVICE), code, invariant=True)
    together = linear(x, weight)

    for rows in ([3], [19, 2]):
        assert same_bits(linear(x[rows], weight), together[rows].contiguous())
    assert linear(x, weight, torch.float32).dtype == torch.float32


def test_misfits_are_refused() -> None:
    x, weight = nans(2, 8), weight_of(4, 8, torch.int8)

    with pytest.raises(ValueError, match="shapes"):
        quantised_linear(x[:, :7], weight)
    with pytest.raises(ValueError, match="dtypes"):
        quantised_linear(x.double(), weight)
    with pytest.raises(ValueError, match="not int8"):
        quantised_linear(x, weight._replace(codes=weight.codes.short()))
    with pytest.raises(ValueError, match="contiguous"):
        quantised_linear(nans(8, 2).T, weight)
    assert quantised_linear(nans(0, 8), weight).shape == (0, 4)
