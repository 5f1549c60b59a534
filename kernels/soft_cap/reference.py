"""y = c tanh(x / c), in plain torch: this is the specification.

As c - 2 c / (1 + exp(2 x / c)), not by `torch.tanh`, for silu_mul's reason: its vector body and its
scalar tail differ. Source: https://arxiv.org/abs/2408.00118 (section 2)
"""

from __future__ import annotations

from torch import Tensor


def soft_capped_(x: Tensor, cap: float) -> Tensor:
    """Bound x (fp32, any shape) by -cap and cap, in place; within 1e-6 of cap."""
    return x.mul_(2.0 / cap).exp_().add_(1.0).reciprocal_().mul_(-2.0 * cap).add_(cap)
