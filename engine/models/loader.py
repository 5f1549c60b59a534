"""Reads, converts and fuses the weights of a model of one of our families."""

from __future__ import annotations

import torch
from torch import Tensor

from cadenza.checkpoints import CheckpointError
from cadenza.engine.models.config import DecoderConfig
from cadenza.engine.models.layer import Layer
from cadenza.engine.models.weights import Weights


class Loader:
    """Asks for weights by the names that transformers gives them."""

    def __init__(
        self, config: DecoderConfig, source: Weights, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._config = config
        self._source = source
        self._dtype = dtype
        self._device = device

    def layer(self, index: int) -> Layer:
        """Return a layer. Raises CheckpointError as `Weights.get` does."""
        config, family = self._config, self._config.family
        hidden, inner = config.hidden_size, config.intermediate_size
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
        qkv = {f"{name}_proj": count * config.head_dim for name, count in heads.items()}
        gate_up = {"gate_proj": inner, "up_proj": inner}
        if family.has_fused_products:
            qkv = {"qkv_proj": sum(qkv.values())}
            gate_up = {"gate_up_proj": 2 * inner}
            gate, up = self._joined(mlp, gate_up, hidden).chunk(2)
        else:
            gate, up = (self.tensor(f"{mlp}.{name}.weight", inner, hidden) for name in gate_up)
        queries = config.num_heads * config.head_dim
        before_mlp, after_attention = "post_attention_layernorm", None
        if family.has_post_norms:
            before_mlp, after_attention = "pre_feedforward_layernorm", before_mlp
        return Layer(
            attention_norm=self.norm(f"{prefix}.input_layernorm"),
            qkv=self._joined(attention, qkv, hidden),
            qkv_bias=self._joined_biases(attention, qkv, config.has_qkv_bias),
            query_norm=self._head_norm(f"{attention}.q_norm"),
            key_norm=self._head_norm(f"{attention}.k_norm"),
            output=self.tensor(f"{attention}.o_proj.weight", hidden, queries),
            output_bias=self._joined_biases(attention, {"o_proj": hidden}, config.has_output_bias),
            attention_post_norm=(
                self.norm(f"{prefix}.{after_attention}") if after_attention else None
            ),
            mlp_norm=self.norm(f"{prefix}.{before_mlp}"),
            gate=gate,
            up=up,
            gate_up_bias=self._joined_biases(mlp, gate_up, config.has_mlp_bias),
            down=self.tensor(f"{mlp}.down_proj.weight", hidden, inner),
            down_bias=self._joined_biases(mlp, {"down_proj": hidden}, config.has_mlp_bias),
            mlp_post_norm=(
                self.norm(f"{prefix}.post_feedforward_layernorm") if family.has_post_norms else None
            ),
        )

    def tensor(self, name: str, *shape: int) -> Tensor:
        """Return a weight of the model's dtype, on its device."""
        weight = self._source.get(name, shape).to(device=self._device, dtype=self._dtype)
        return weight.contiguous()

    def norm(self, prefix: str, width: int | None = None) -> Tensor:
        """Return a norm's weight [width], of the hidden size by default.

        With an offset it is fp32, in which transformers adds it: one in bfloat16 has steps of 2⁻⁷.
        """
        weight = self._source.get(f"{prefix}.weight", (width or self._config.hidden_size,))
        if offset := self._config.family.norm_offset:
            weight = weight.float() + (0.0 if self._source.norms_are_offset else offset)
            return weight.to(self._device)
        return weight.to(device=self._device, dtype=self._dtype).contiguous()

    def check_all_are_read(self) -> None:
        """Raise CheckpointError when a layer has weights that nobody asked for."""
        if unread := self._source.unread():
            raise CheckpointError(
                f"{self._source.where}: {unread[0]!r} is not a weight of a"
                f" {self._config.family.name} model that is configured like this."
            )

    def _head_norm(self, prefix: str) -> Tensor | None:
        if not self._config.family.has_query_key_norms:
            return None
        return self.norm(prefix, self._config.head_dim)

    def _joined(self, prefix: str, outputs: dict[str, int], inputs: int) -> Tensor:
        """Return products that read the same input as one."""
        parts = [
            self.tensor(f"{prefix}.{name}.weight", rows, inputs) for name, rows in outputs.items()
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _joined_biases(self, prefix: str, outputs: dict[str, int], has: bool) -> Tensor | None:
        if not has:
            return None
        return torch.cat(
            [self.tensor(f"{prefix}.{name}.bias", rows) for name, rows in outputs.items()]
        )
