"""What a model's forward pass needs to know of a step, on the model's device."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cadenza.kernels.paged_attention import AttentionLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBatch:
    """One step: tokens of many rows, one row after another. Index tensors are int64."""

    tokens: Tensor  # [tokens]
    positions: Tensor  # [tokens], in the row's sequence
    blocks: Tensor  # [tokens], cache block that takes the token's keys and values
    offsets: Tensor  # [tokens], place in that block
    attention: AttentionLayout
    sampled: Tensor  # [sampled], index of each token whose logits are wanted
