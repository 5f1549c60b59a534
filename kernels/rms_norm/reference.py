"""y = x / sqrt(mean(x²) + eps) · weight, in plain torch: this is the specification.

torch reduces each row by itself, in an order that depends on the row's length alone; the tests
assert that over row counts and threads. Source: https://arxiv.org/abs/1910.07467
"""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise x [..., width] by row, in fp32, and scale by weight [width]; dtype of x.

    A weight may be wider than x: then x is scaled before it is rounded.
    """
    dtype = torch.promote_types(x.dtype, weight.dtype)
    scaled = torch.nn.functional.rms_norm(x.to(dtype), weight.shape, weight.to(dtype), eps)
    return scaled.to(x.dtype)


def add_rms_norm_reference(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return x + residual, normalised and itself; the sum is rounded to their dtype before."""
    total = x + residual
    return rms_norm_reference(total, weight, eps), total
