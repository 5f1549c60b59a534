"""Any other decoder-only model, run by transformers, its attention over our paged cache.

transformers lets attention be replaced by name; ours writes the keys and values that it is given
into the cache and attends to what lies there, so that all rows of a step are one sequence to the
rest of the model. Its products are ours too, which keep a row's bits in any batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from cadenza.engine.kv_cache import KVCache
from cadenza.engine.models.batch import ModelBatch
from cadenza.engine.models.config import ModelConfig
from cadenza.kernels.kv_write import kv_write
from cadenza.kernels.linear import linear, pack
from cadenza.kernels.paged_attention import (
    AttentionLayout,
    Workspace,
    paged_attention,
    plan_attention,
)

ATTENTION = "cadenza_paged"  # the name that transformers knows ours by


class PagedStep:
    """One step's attention, which reaches `_attend` through the model as a keyword."""

    def __init__(self, batch: ModelBatch, cache: KVCache, workspace: Workspace) -> None:
        self._batch = batch
        self._cache = cache
        self._workspace = workspace
        self._layouts: dict[tuple[int | None, float | None], AttentionLayout] = {}
        self.windows: dict[int, int | None] = {}  # of each layer that has attended

    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: float,
        limits: tuple[int | None, float | None],
    ) -> Tensor:
        """Map queries [tokens, heads, head_dim] to the same shape; limits: window and softcap."""
        self.windows[layer] = limits[0]
        cache = self._cache.layer(layer)
        kv_write(keys, values, cache, self._batch.blocks, self._batch.offsets)
        if limits not in self._layouts:
            self._layouts[limits] = self._layout(queries, *limits)
        return paged_attention(queries, cache, self._layouts[limits], scale)

    def _layout(
        self, queries: Tensor, window: int | None, softcap: float | None
    ) -> AttentionLayout:
        known = next(iter(self._layouts.values()), None)
        return plan_attention(
            self._batch.num_context,
            self._batch.num_new,
            self._batch.block_tables,
            block_size=self._cache.shape.block_size,
            group=queries.shape[1] // self._cache.shape.num_kv_heads,
            head_dim=queries.shape[2],
            kv_heads=self._cache.shape.num_kv_heads,
            device=queries.device,
            workspace=self._workspace,
            window=window,
            softcap=softcap,
            tiles=known.tiles if known else (),
        )


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cadenza_step: PagedStep,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers asks: [1, heads, tokens, head_dim] -> [1, tokens, heads, head_dim]."""
    queries, keys, values = (part[0].transpose(0, 1) for part in (query, key, value))
    scale = queries.shape[2] ** -0.5 if scaling is None else scaling
    limits = (sliding_window, softcap)
    attended = cadenza_step.attend(module.layer_idx, queries, keys, values, scale, limits)
    return attended.unsqueeze(0), None


class _Product(nn.Module):
    """In place of a `nn.Linear`."""

    def __init__(self, product: nn.Linear) -> None:
        super().__init__()
        self._weight = pack(product.weight.detach())
        self._bias = None if product.bias is None else product.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        rows = linear(x.flatten(0, -2), self._weight, torch.float32)
        if self._bias is not None:
            rows = rows + self._bias
        return rows.to(x.dtype).view(*x.shape[:-1], -1)


class _Hidden:
    """What a body returns to a head; all but the hidden states was not asked for."""

    def __init__(self, last_hidden_state: Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getitem__(self, _: object) -> Tensor:
        return self.last_hidden_state

    def __getattr__(self, name: str) -> None:
        """Such as attentions, or which experts were chosen."""


class _Computed(nn.Module):
    """In place of a model's body: what goes in has been through it already."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Hidden:
        return _Hidden(inputs_embeds)


class TransformersModel:
    """A loaded model. Stateless: all that a step changes is in the cache."""

    layers = "transformers"

    def __init__(self, config: ModelConfig, model: Any) -> None:
        """model: a transformers `...ForCausalLM`; it becomes this model's own."""
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attend)
        model.set_attn_implementation(ATTENTION)
        _replace_products(model)
        self.config = config
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self._body = model.base_model
        self._head = _without_body(model)
        self._workspace = Workspace()

    def hidden(self, batch: ModelBatch, cache: KVCache) -> Tensor:
        """Compute all tokens of the batch, write their keys and values.

        Returns what comes out of the model's body, [tokens, hidden].
        """
        return self.attended(batch, cache)[0]

    def attended(self, batch: ModelBatch, cache: KVCache) -> tuple[Tensor, PagedStep]:
        """As `hidden`, and which layers have attended."""
        step = PagedStep(batch, cache, self._workspace)
        out = self._body(
            input_ids=batch.tokens.unsqueeze(0),
            position_ids=batch.positions.unsqueeze(0),
            use_cache=False,
            cadenza_step=step,
        )
        hidden: Tensor = out.last_hidden_state[0]
        return hidden, step

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits after tokens that `hidden` computed, [tokens, vocab_size], fp32."""
        logits: Tensor = self._head(inputs_embeds=hidden.unsqueeze(0), use_cache=False).logits
        return logits[0].float()


def _replace_products(model: nn.Module) -> None:
    # by name, that each is let go before the next is packed
    for parent, name in list(_products(model)):
        setattr(parent, name, _Product(getattr(parent, name)))


def _products(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                yield parent, name


def _without_body(model: Any) -> Any:
    """Return a model of the same head, scaling and caps, whose body passes on what it is given."""
    head = copy.copy(model)
    head._modules = {**model._modules, model.base_model_prefix: _Computed()}
    return head
