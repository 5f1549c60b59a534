"""What the runner needs of a model, whoever computes its layers."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from cadenza.engine.kv_cache import KVCache
from cadenza.engine.models.batch import ModelBatch
from cadenza.engine.models.config import ModelConfig


class Model(Protocol):
    """A loaded model. Stateless: all that a step changes is in the cache."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, keys and values."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def layers(self) -> str:
        """What computes the layers: native, plain or transformers."""
        ...

    def hidden(self, batch: ModelBatch, cache: KVCache) -> Tensor:
        """Compute all tokens of the batch, write their keys and values.

        Returns what `logits` takes, [tokens, hidden].
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits after tokens that `hidden` computed, [tokens, vocab_size], fp32."""
        ...
