"""y = gelu(gate) · up in plain torch: the specification.

gelu(g) = g / 2 (1 + tanh(u)) with u = sqrt(2 / pi) (g + 0.044715 g³), the approximation that models
are trained with, which equals g / (1 + exp(-2 u)). Not by `torch.tanh`, for silu_mul's reason: its
vector body and its scalar tail differ.
Source: https://arxiv.org/abs/1606.08415 (section 2)
"""

from __future__ import annotations

import math

from torch import Tensor

SLOPE = 2.0 * math.sqrt(2.0 / math.pi)
CUBIC = 0.044715


def gelu_mul_reference(gate_up: Tensor) -> Tensor:
    """Map gate_up [rows, 2 * width], the gate first, to [rows, width]; fp32 inside."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.float()
    minus_2u = gate * (gate * gate).mul_(-SLOPE * CUBIC).sub_(SLOPE)
    activated = gate / minus_2u.exp_().add_(1.0)
    return activated.mul_(up).to(gate_up.dtype)
