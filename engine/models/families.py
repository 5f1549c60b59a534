"""The families whose layers are our own: what sets each apart, in one description each.

Sizes, windows and rotary scaling come from the checkpoint; here is what its configuration takes for
granted. A family is added by describing it, as long as the shared blocks have what it needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Windows(Enum):
    """Which layers the configuration's `sliding_window` is for."""

    NONE = "none"
    ALL = "all"
    BY_LAYER = "by layer"  # those that `layer_types` calls sliding_attention


class Activation(Enum):
    """What the gate passes through; the names are transformers'."""

    SILU = "silu"
    GELU = "gelu_pytorch_tanh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of decoder-only transformers with RMSNorm, rotary positions and a gated MLP."""

    name: str
    architecture: str  # transformers' class name
    gguf: str | None = None  # general.architecture in GGUF files; None: another family's
    activation: Activation = Activation.SILU
    windows: Windows = Windows.NONE
    window_period: int = 1  # BY_LAYER in GGUF files: the last of so many layers has no window
    has_qkv_bias: bool = False  # whatever the configuration says
    has_query_key_norms: bool = False  # of each head, before it is rotated
    has_post_norms: bool = False  # of what attention and MLP add to the residual
    has_fused_products: bool = False  # qkv_proj and gate_up_proj instead of five
    has_softcaps: bool = False  # of scores, where the configuration has one; any may have of logits
    norm_offset: float = 0.0  # what norms add to their weights as stored
    scales_embeddings: bool = False  # by the root of the hidden size
    pairs_are_neighbours: bool = False  # the two rows of a rotary pair, in GGUF files


_GEMMA_2 = Family(
    name="Gemma 2",
    architecture="Gemma2ForCausalLM",
    gguf="gemma2",
    activation=Activation.GELU,
    windows=Windows.BY_LAYER,
    window_period=2,
    has_post_norms=True,
    has_softcaps=True,
    norm_offset=1.0,
    scales_embeddings=True,
)

FAMILIES = (
    Family(name="Llama", architecture="LlamaForCausalLM", gguf="llama", pairs_are_neighbours=True),
    Family(
        name="Qwen2",
        architecture="Qwen2ForCausalLM",
        gguf="qwen2",
        has_qkv_bias=True,
        windows=Windows.BY_LAYER,
    ),
    Family(
        name="Qwen3",
        architecture="Qwen3ForCausalLM",
        gguf="qwen3",
        has_query_key_norms=True,
        windows=Windows.BY_LAYER,
    ),
    # GGUF files call it a Llama, and have no window
    Family(name="Mistral", architecture="MistralForCausalLM", windows=Windows.ALL),
    _GEMMA_2,
    replace(
        _GEMMA_2,
        name="Gemma 3",
        architecture="Gemma3ForCausalLM",
        gguf="gemma3",
        window_period=6,
        has_query_key_norms=True,
        has_softcaps=False,
    ),
    Family(
        name="Phi-3",
        architecture="Phi3ForCausalLM",
        gguf="phi3",
        windows=Windows.ALL,
        has_fused_products=True,
    ),
)
BY_ARCHITECTURE = {family.architecture: family for family in FAMILIES}
BY_GGUF = {family.gguf: family for family in FAMILIES if family.gguf is not None}
