"""One layer's weights, as checkpoints have them; what a family lacks is None."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights of products are [outputs, inputs], biases [outputs], norms [width]."""

    attention_norm: Tensor
    qkv: Tensor  # [(heads + 2 kv_heads) * head_dim, hidden]
    qkv_bias: Tensor | None
    query_norm: Tensor | None  # [head_dim], as the next
    key_norm: Tensor | None
    output: Tensor  # [hidden, heads * head_dim]
    output_bias: Tensor | None
    attention_post_norm: Tensor | None
    mlp_norm: Tensor
    gate: Tensor  # [intermediate, hidden]
    up: Tensor  # [intermediate, hidden]
    gate_up_bias: Tensor | None
    down: Tensor  # [hidden, intermediate]
    down_bias: Tensor | None
    mlp_post_norm: Tensor | None
