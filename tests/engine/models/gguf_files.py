"""Writes a model of transformers as a GGUF file, as llama.cpp's converter does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from cadenza.engine.models.families import Family

F32 = GGMLQuantizationType.F32
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA_NAMES = _NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write_gguf(
    path: Path,
    model: Any,
    family: Family,
    kind: GGMLQuantizationType = F32,
    factors: Mapping[str, Any] | None = None,
    **further: int | float | str | list[bool],
) -> None:
    """Write `model` to `path`.

    kind: what products are stored as; factors: of LongRoPE; further: metadata under the
    architecture's prefix.
    """
    config = model.config
    assert family.gguf is not None
    writer = GGUFWriter(path, family.gguf)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    numbers: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "context_length": config.max_position_embeddings,
        **further,
    }
    for key, value in numbers.items():
        add = {
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            list: writer.add_array,
        }
        add[type(value)](f"{family.gguf}.{key}", value)
    for name, values in _tensors(model, family):
        stored = kind if values.ndim == 2 else F32
        writer.add_tensor(name, quantize(values, stored), raw_dtype=stored)
    for length in ("long", "short") if factors else ():
        values = np.array(factors[f"{length}_factor"], dtype=np.float32)
        writer.add_tensor(f"rope_factors_{length}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(model: Any, family: Family) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    config = model.config
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    names = _GEMMA_NAMES if family.has_post_norms else _NAMES
    for full_name, parameter in model.named_parameters():
        base, _, kind = full_name.rpartition(".")
        prefix = ""
        if base.startswith("model.layers."):
            _, _, layer, base = base.split(".", 3)
            prefix = f"blk.{layer}."
        name, values = names[base], parameter.detach().numpy()
        if name.endswith("norm"):
            values = values + np.float32(family.norm_offset)  # convert_hf_to_gguf.py, Gemma
        if family.pairs_are_neighbours and name in heads:
            # convert_hf_to_gguf.py, LlamaModel.permute
            pairs = values.reshape(heads[name], 2, -1, *values.shape[1:]).swapaxes(1, 2)
            values = np.ascontiguousarray(pairs).reshape(values.shape)
        yield f"{prefix}{name}.{kind}", values
