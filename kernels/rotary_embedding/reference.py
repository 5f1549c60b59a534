"""Rotary position embedding in plain torch: this is the specification.

Dimension i of the first half and of the second half form a pair, which is rotated by
position · frequency[i]: (a, b) -> (a cos - b sin, b cos + a sin).
Source: https://arxiv.org/abs/2104.09864
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_embedding_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [tokens, heads, head_dim] by cos and sin [tokens, 1, rotated / 2] (fp32).

    Dimensions from the rotated ones on stay. Computes in fp32 and returns the dtype of x.
    """
    half = cos.shape[-1]
    first, second, rest = x.float().tensor_split((half, 2 * half), dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
    return rotated.to(x.dtype)
