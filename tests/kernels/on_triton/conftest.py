"""Where these cases run: in Triton's interpreter, if it is on, and on a GPU otherwise.

An interpreted kernel is one from its definition on, so that these files run in processes of their
own: `tests/kernels/test_triton.py` starts them.
"""

from __future__ import annotations

import pytest
import torch

from cadenza.kernels.triton_backend import INTERPRETED

DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# fp32 and bf16 take other ways than each other; fp16 takes that of fp32
each_dtype = pytest.mark.parametrize(
    "dtype",
    [*DTYPES[:2], pytest.param(torch.float16, marks=pytest.mark.extra)],
    ids=str,
)
# Of the largest value. fp32: another order of sums; fp16: 11 bits; bf16: 8 bits, and the
# interpreter cuts off where it should round
TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def nans(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Outputs that nobody has written."""
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)
