"""GGUF files of every family and every storage type, against transformers and gguf-py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

from cadenza.checkpoints import read_gguf
from cadenza.checkpoints.ggml_types import GGML_TYPES
from cadenza.engine.models.families import BY_ARCHITECTURE, BY_GGUF
from cadenza.engine.models.weights import GgufWeights
from tests.engine.conftest import Row, make_plan, random_tokens
from tests.engine.models.gguf_files import write_gguf
from tests.engine.models.tiny import THETA, TINY, VOCABULARY, Tiny, open_runner

CLOSE = 1e-4
ROPE = {"rope.freq_base": THETA}
GEMMA = {"attention.sliding_window": 9}
GEMMA_2 = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 8.0, **GEMMA}
GEMMA_3 = {
    "rope.freq_base_swa": 100.0,
    "rope.scaling.type": "linear",
    "rope.scaling.factor": 2.0,
    "final_logit_softcapping": 12.0,
    **GEMMA,
}
# A file has no scale of scores and no types of layers: both follow from the family
AS_FILES_HAVE_THEM = {
    "Gemma 2": {"query_pre_attn_scalar": 12},
    "Gemma 3": {
        "query_pre_attn_scalar": 16,
        "num_hidden_layers": 6,
        "layer_types": None,
    },
}
METADATA: dict[str, dict[str, Any]] = {
    "Llama with biases": ROPE,
    "Llama, tied, with linear scaling": {
        **ROPE,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 3.0,
    },
    "Llama with YaRN": {
        **ROPE,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
        "rope.scaling.yarn_beta_fast": 4.0,
    },
    "Qwen2": ROPE,
    "Qwen3": ROPE,
    "Gemma 2": {**ROPE, **GEMMA_2},
    "Gemma 3": {**ROPE, **GEMMA_3},
    "Phi-3 with windows": {**ROPE, "attention.sliding_window": 20},
}


def last_logits(path: Path, tokens: list[int]) -> torch.Tensor:
    runner, _ = open_runner(path)
    return runner.logits(make_plan(Row(tokens, len(tokens), [0, 1, 2])))[0]


@torch.inference_mode()
@pytest.mark.parametrize("name", METADATA)
def test_a_file_of_each_family_has_transformers_logits(name: str, tmp_path: Path) -> None:
    tiny = TINY[name]
    tiny = Tiny(tiny.kind, {**tiny.fields, **AS_FILES_HAVE_THEM.get(name, {})}, tiny.configured_by)
    model = tiny.save(tmp_path)
    family = BY_ARCHITECTURE[f"{tiny.kind}ForCausalLM"]
    write_gguf(tmp_path / "tiny.gguf", model, family, **METADATA[name])
    tokens = random_tokens(40, vocab_size=VOCABULARY)

    found = last_logits(tmp_path / "tiny.gguf", tokens)

    expected = model(torch.tensor([tokens])).logits[0, -1]
    torch.testing.assert_close(found, expected, rtol=CLOSE, atol=CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("pattern", [2, [True, False, True]])
def test_a_file_may_say_which_layers_have_windows(pattern: int | list[bool], tmp_path: Path):
    tiny = TINY["Gemma 3"]
    model = Tiny(tiny.kind, {**tiny.fields, "query_pre_attn_scalar": 16}, "Gemma3Text").save(
        tmp_path
    )
    path, key = tmp_path / "tiny.gguf", "attention.sliding_window_pattern"
    write_gguf(path, model, BY_GGUF["gemma3"], **METADATA["Gemma 3"], **{key: pattern})
    tokens = random_tokens(40, vocab_size=VOCABULARY)

    found = last_logits(path, tokens)

    expected = model(torch.tensor([tokens])).logits[0, -1]
    torch.testing.assert_close(found, expected, rtol=CLOSE, atol=CLOSE)


@torch.inference_mode()
def test_longrope_factors_of_a_file_are_those_of_a_folder(tmp_path: Path) -> None:
    tiny = TINY["Phi-3, rotated in part, with LongRoPE"]
    model = tiny.save(tmp_path)
    rope = model.config.rope_parameters
    metadata = {
        **ROPE,
        "rope.dimension_count": 8,
        "rope.scaling.original_context_length": 128,
    }
    path = tmp_path / "tiny.gguf"
    write_gguf(path, model, BY_ARCHITECTURE["Phi3ForCausalLM"], **metadata, factors=rope)
    tokens = random_tokens(40, vocab_size=VOCABULARY)

    found = last_logits(path, tokens)

    expected = model(torch.tensor([tokens])).logits[0, -1]
    torch.testing.assert_close(found, expected, rtol=CLOSE, atol=CLOSE)


def stored_blocks(kind: GGMLQuantizationType, rows: int, blocks: int) -> np.ndarray[Any, Any]:
    """Rows of random blocks as bytes; quantised where gguf-py can, else random."""
    elements, size = GGML_QUANT_SIZES[kind]
    chance = np.random.default_rng(kind.value)
    try:
        return quantize(chance.normal(size=(rows, blocks * elements)).astype(np.float32), kind)
    except NotImplementedError:
        # without bit 6 no two bytes are a scale in fp16 that is not finite
        return chance.integers(0, 256, (rows, blocks * size), dtype=np.uint8) & 0xBF


def is_dequantised(kind: GGMLQuantizationType) -> bool:
    try:
        dequantize(stored_blocks(kind, 1, 1), kind)
    except NotImplementedError:
        return False
    return True


DEQUANTISED = [kind for kind in GGMLQuantizationType if is_dequantised(kind)]


def test_every_type_that_gguf_dequantises_is_known() -> None:
    assert {kind.value for kind in DEQUANTISED} <= GGML_TYPES.keys()
    assert len(DEQUANTISED) > 25
    sizes = {kind: GGML_TYPES[kind.value][1:] for kind in DEQUANTISED}
    assert sizes == {kind: GGML_QUANT_SIZES[kind] for kind in DEQUANTISED}


@pytest.mark.parametrize("kind", DEQUANTISED, ids=lambda kind: kind.name)
def test_each_storage_type_round_trips(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    """More rows than a thread dequantises at once, in pieces that end within a row."""
    elements, _ = GGML_QUANT_SIZES[kind]
    blocks = max(1, 256 // elements) * 3
    shape = (200, blocks * elements)
    stored = stored_blocks(kind, shape[0], blocks)
    path = tmp_path / "tiny.gguf"
    writer = GGUFWriter(path, "qwen2")
    writer.add_tensor("blk.0.ffn_up.weight", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config = SimpleNamespace(family=BY_GGUF["qwen2"], num_heads=1, num_kv_heads=1)

    found = GgufWeights(read_gguf(path), config).get("model.layers.0.mlp.up_proj.weight", shape)

    expected = dequantize(stored, kind).reshape(shape)
    assert np.array_equal(found.numpy(), expected)
    assert expected.std() > 0


@torch.inference_mode()
def test_a_quantised_model_is_near_the_one_it_was_made_of(tmp_path: Path) -> None:
    tiny = Tiny("Qwen3", {"head_dim": 16, "hidden_size": 64, "intermediate_size": 96})
    model = tiny.save(tmp_path)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, model, BY_GGUF["qwen3"], GGMLQuantizationType.Q8_0, **ROPE)
    tokens = random_tokens(40, vocab_size=VOCABULARY)

    found = last_logits(path, tokens)

    expected = model(torch.tensor([tokens])).logits[0, -1]
    assert torch.cosine_similarity(found, expected, dim=0) > 0.995
    assert not torch.allclose(found, expected, atol=CLOSE)
