"""Models of real sizes with random weights: they need no files, and no network."""

from __future__ import annotations

import torch
from torch import Tensor

from cadenza.engine.models import DecoderConfig, Model, load_decoder
from cadenza.engine.models.families import BY_ARCHITECTURE
from cadenza.engine.models.rope import Rope
from cadenza.wire.messages import SamplingDefaults

_SEED = 0
_TILE = (1 << 20) + 7  # values drawn once and repeated, by no number that rows are a multiple of


def llama(
    *, layers: int, hidden: int, inner: int, heads: int, kv_heads: int, vocabulary: int
) -> DecoderConfig:
    """Return the configuration of a Llama with heads of 128, or of what hidden has for a head."""
    head_dim = hidden // heads
    rope = Rope(theta=500000.0, rotated=head_dim)
    return DecoderConfig(
        architecture="LlamaForCausalLM",
        vocab_size=vocabulary,
        num_layers=layers,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=32768,
        eos_token_ids=(),
        sampling=SamplingDefaults(),
        family=BY_ARCHITECTURE["LlamaForCausalLM"],
        hidden_size=hidden,
        intermediate_size=inner,
        num_heads=heads,
        norm_eps=1e-5,
        activation=BY_ARCHITECTURE["LlamaForCausalLM"].activation,
        has_qkv_bias=False,
        has_output_bias=False,
        has_mlp_bias=False,
        scale=head_dim**-0.5,
        attention_softcap=None,
        logits_softcap=None,
        ropes=(rope,) * layers,
        windows=(None,) * layers,
        tied_embeddings=False,
    )


LLAMA_8B = llama(
    layers=32, hidden=4096, inner=14336, heads=32, kv_heads=8, vocabulary=128256
)  # Llama 3.1 8B


class RandomWeights:
    """Weights of any name and shape, small enough that nothing overflows."""

    where = "random weights"
    norms_are_offset = False

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(_SEED)
        self._tile = (0.02 * torch.randn(_TILE, generator=generator)).bfloat16()

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16)
        size = shape[0] * shape[1]
        return self._tile.repeat(-(-size // _TILE))[:size].view(shape)

    def unread(self) -> list[str]:
        return []


def load_random(config: DecoderConfig, device: torch.device, **options: object) -> Model:
    """Build a model in bfloat16; options: as `load_decoder` takes them."""
    with torch.inference_mode():
        return load_decoder(
            config,
            RandomWeights(),
            torch.bfloat16,
            device,
            lambda *_: None,
            **options,  # type: ignore[arg-type]
        )


def num_weights(config: DecoderConfig) -> int:
    """Return how many numbers a decode reads: all weights, but of the embedding a few rows."""
    attention = 2 * config.hidden_size * config.head_dim * (config.num_heads + config.num_kv_heads)
    mlp = 3 * config.hidden_size * config.intermediate_size
    return config.num_layers * (attention + mlp) + config.vocab_size * config.hidden_size


def transformers_config(config: DecoderConfig) -> dict[str, object]:
    """Return what `config.json` has to say, for peers that make up weights themselves."""
    return {
        "architectures": [config.architecture],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.ropes[0].theta,
        "tie_word_embeddings": config.tied_embeddings,
        "torch_dtype": "bfloat16",
    }
