"""y = silu(gate) · up with silu(g) = g / (1 + exp(-g)), in plain torch: the specification.

Not by `torch.nn.functional.silu`: its vector body and its scalar tail use different exponentials,
so that an element's value depends on where the thread split falls (seen in fp32 at 200 rows of
1536 and 7 threads). `torch.exp` has no such tail.
Source: https://arxiv.org/abs/2002.05202
"""

from __future__ import annotations

from torch import Tensor


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """Map gate_up [rows, 2 * width], the gate first, to [rows, width]; fp32 inside."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.float()
    activated = gate / gate.neg().exp_().add_(1.0)
    return activated.mul_(up).to(gate_up.dtype)
