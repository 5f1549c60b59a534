"""How kernels of act(gate) · up are launched: a program for a piece of a row."""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

_PIECE = 1024  # values a program computes


def launch(kernel: Any, gate_up: Tensor) -> Tensor:
    """Map gate_up [rows, 2 * width], the gate first, to [rows, width]; rows contiguous.

    The Triton kernel takes gate_up, the output, width, the stride of gate_up's rows, and PIECE.
    """
    rows, both = gate_up.shape
    if both % 2:
        raise ValueError(f"{both} columns are not gates and as many values")
    if gate_up.stride(1) != 1:
        raise ValueError("rows must be contiguous")
    width = both // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        grid = (rows, triton.cdiv(width, _PIECE))
        kernel[grid](gate_up, out, width, gate_up.stride(0), PIECE=_PIECE)
    return out
