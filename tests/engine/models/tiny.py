"""Random models of every family, a few thousand weights each, written by transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from cadenza.engine.runner import ModelRunner
from cadenza.engine.startup import RunnerFacts, build_runner
from cadenza.wire.messages import EngineConfig, Sampling
from tests.engine.conftest import LLAMA3_ROPE

VOCABULARY = 101
THETA = 500.0  # so that tens of tokens turn every frequency


@dataclass(frozen=True)
class Tiny:
    """A configuration to make a model of; `fields` add to what all have in common."""

    kind: str  # transformers' names of configuration and class begin so
    fields: dict[str, Any] = field(default_factory=dict)
    configured_by: str = ""  # the configuration's name, if it begins otherwise
    ends: str = "ForCausalLM"

    def config(self) -> Any:
        name = f"{self.configured_by or self.kind}Config"
        common = {
            "vocab_size": VOCABULARY,
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "tie_word_embeddings": False,
            "initializer_range": 0.3,
            "bos_token_id": None,
            "eos_token_id": [3, 7],
            "pad_token_id": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        }
        return getattr(transformers, name)(**{**common, **self.fields})

    def save(self, folder: Path, **options: Any) -> Any:
        """Write the model as a folder, and return it; norms and biases are random too."""
        config = self.config()
        with torch.random.fork_rng(devices=()), torch.no_grad():
            torch.manual_seed(11)
            model = getattr(transformers, f"{self.kind}{self.ends}")(config).eval()
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.3 * torch.randn(parameter.shape))
        model.save_pretrained(folder, **options)
        (folder / "tokenizer.json").write_text("{}")
        return model


def scaled(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": THETA, **fields}}


YARN = scaled("yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=4.0)
LONGROPE = scaled(
    "longrope",
    short_factor=[1.0, 1.1, 1.2, 1.3],
    long_factor=[1.0, 2.0, 3.0, 4.0],
    original_max_position_embeddings=128,
)
GEMMA_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "rope_theta": THETA, "factor": 2.0},
}
BY_LAYER = ["sliding_attention", "full_attention", "sliding_attention"]

TINY = {
    "Llama with llama3 scaling": Tiny("Llama", {"head_dim": 32, "rope_parameters": LLAMA3_ROPE}),
    "Llama, tied, with linear scaling": Tiny(
        "Llama", {"tie_word_embeddings": True, "head_dim": 32, **scaled("linear", factor=3.0)}
    ),
    "Llama with biases": Tiny("Llama", {"attention_bias": True, "mlp_bias": True}),
    "Llama with dynamic scaling": Tiny("Llama", {"head_dim": 32, **scaled("dynamic", factor=2.0)}),
    "Llama with YaRN": Tiny("Llama", {"head_dim": 32, **YARN}),
    "Qwen2": Tiny("Qwen2", {"tie_word_embeddings": True, "head_dim": 32}),
    "Qwen2 with windows": Tiny(
        "Qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
            "head_dim": 32,
        },
    ),
    "Qwen3": Tiny("Qwen3", {"head_dim": 32}),
    "Mistral with windows": Tiny("Mistral", {"sliding_window": 13, "head_dim": 32}),
    "Mistral without": Tiny("Mistral", {"sliding_window": None, "head_dim": 32}),
    "Gemma 2": Tiny(
        "Gemma2",
        {
            "tie_word_embeddings": True,
            "head_dim": 12,
            "query_pre_attn_scalar": 20,
            "sliding_window": 9,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 8.0,
        },
    ),
    "Gemma 3": Tiny(
        "Gemma3",
        {
            "tie_word_embeddings": True,
            "head_dim": 16,
            "query_pre_attn_scalar": 20,
            "sliding_window": 9,
            "layer_types": BY_LAYER,
            "rope_parameters": GEMMA_ROPES,
            "final_logit_softcapping": 12.0,
        },
        "Gemma3Text",
    ),
    "Phi-3 with windows": Tiny("Phi3", {"sliding_window": 20}),
    "Phi-3, rotated in part, with LongRoPE": Tiny(
        "Phi3",
        {
            "hidden_size": 72,  # heads of 12, of which 8 are rotated
            "original_max_position_embeddings": 128,
            "rope_parameters": {**LONGROPE["rope_parameters"], "partial_rotary_factor": 0.67},
        },
    ),
}

# what transformers runs over our cache
OTHERS = {
    "GPT-NeoX": Tiny(
        "GPTNeoX", {"num_key_value_heads": 6, **scaled("default", partial_rotary_factor=0.5)}
    ),
    "OLMo2": Tiny("Olmo2"),
    "Mixtral, with experts": Tiny("Mixtral", {"num_local_experts": 4, "sliding_window": None}),
    "Cohere, with scaled logits": Tiny("Cohere", {"logit_scale": 0.25, "use_qk_norm": False}),
    "GPT-2, with learnt positions": Tiny("GPT2", {"num_key_value_heads": 6}, ends="LMHeadModel"),
    "OLMo3, with windows": Tiny("Olmo3", {"sliding_window": 9, "layer_types": BY_LAYER}),
}


def open_runner(path: Path, **changes: Any) -> tuple[ModelRunner, RunnerFacts]:
    """A runner in fp32 over blocks of 16 unless told otherwise, greedy for everybody."""
    config = EngineConfig(
        **{
            "model": str(path),
            "dtype": "float32",
            "num_blocks": 128,
            "max_num_batched_tokens": 64,
            **changes,
        }
    )
    return build_runner(config, lambda _: (Sampling(temperature=0.0), 0), lambda *_: None)
