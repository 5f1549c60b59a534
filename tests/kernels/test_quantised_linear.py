"""Weights of eight bits, and their product in plain torch."""

from __future__ import annotations

import pytest
import torch

from cadenza.kernels.quantised_linear import quantise, quantised_linear
from tests.kernels.conftest import assert_close, randn


# half a step of 127 codes; half of the last of three bits
@pytest.mark.parametrize(
    ("code", "error"), [(torch.int8, 0.5 / 127), (torch.float8_e4m3fn, 2.0**-4)], ids=str
)
def test_codes_times_scales_are_close_to_the_weight(code: torch.dtype, error: float) -> None:
    weight = randn(5, 33) * torch.logspace(-4, 4, 5).unsqueeze(1)
    weight[3] = 0.0

    codes, scales = quantise(weight, code)

    for row, of_row, scale in zip(weight, codes.float(), scales, strict=True):
        largest = float(row.abs().max())
        assert float((of_row * scale - row).abs().max()) <= 1.001 * error * largest
    x = randn(4, 33, seed=1)
    product = quantised_linear(x, quantise(weight, code))
    assert_close("product", product, x @ (codes.float() * scales.unsqueeze(1)).t(), 1e-6)


@pytest.mark.parametrize("code", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_a_row_whose_scale_would_be_zero_becomes_zeros(code: torch.dtype) -> None:
    codes, scales = quantise(torch.tensor([[0.0, 1e-44], [0.0, 1.0]]), code)

    assert codes.float().isfinite().all()
    assert codes[0].float().tolist() == [0.0, 0.0]
    assert scales[0] == 1.0


def test_what_cannot_be_quantised_is_refused() -> None:
    with pytest.raises(ValueError, match="not torch"):
        quantise(randn(2, 2), torch.int16)
    with pytest.raises(ValueError, match="not finite"):
        quantise(torch.tensor([[1.0, float("nan")]]), torch.int8)
