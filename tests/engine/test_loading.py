"""Loading models: folders in several files, and every broken checkpoint told in one sentence."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.torch import load_file, save_file

from cadenza.checkpoints import CheckpointError, read_gguf
from cadenza.engine import loading
from cadenza.engine.loading import load_model
from cadenza.engine.models import GgufWeights, config_from_gguf
from cadenza.engine.startup import RunnerFacts, build_runner
from cadenza.wire.messages import EngineConfig, Sampling, SamplingDefaults
from tests.engine.conftest import Row, make_plan, save_tiny
from tests.engine.models.tiny import OTHERS

WEIGHTS = "model.safetensors"
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def load(path: Path, device: str = "cpu", dtype: str = "float32") -> Any:
    return load_model(path, device, dtype, lambda *_: None)


def last_logits(path: Path, tokens: list[int]) -> torch.Tensor:
    config = EngineConfig(model=str(path), dtype="float32", num_blocks=8, max_num_batched_tokens=64)
    runner, _ = build_runner(config, lambda _: (Sampling(), 0), lambda *_: None)
    return runner.logits(make_plan(Row(tokens, len(tokens), [0])))


def test_weights_in_several_files_are_found_by_their_index(tmp_path: Path):
    save_tiny(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    weights = load_file(tmp_path / "one" / WEIGHTS)
    (tmp_path / "two" / WEIGHTS).unlink()
    parts = [dict(list(weights.items())[i::2]) for i in range(2)]
    for number, part in enumerate(parts):
        save_file(part, tmp_path / "two" / f"part{number}.safetensors")
    index = {name: f"part{i}.safetensors" for i, part in enumerate(parts) for name in part}
    write_json(tmp_path / "two" / "model.safetensors.index.json", {"weight_map": index})

    one, two = (last_logits(tmp_path / name, [1, 2, 3]) for name in ("one", "two"))
    assert torch.equal(one, two)


@torch.inference_mode()
def test_a_head_that_is_there_is_used_even_if_it_is_said_to_be_tied(tmp_path: Path):
    save_tiny(tmp_path)
    configure(tmp_path, tie_word_embeddings=True)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not torch.equal(theirs.lm_head.weight, theirs.model.embed_tokens.weight)

    found = last_logits(tmp_path, [1, 2, 3])[0]

    expected = theirs(torch.tensor([[1, 2, 3]])).logits[0, -1]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_progress_counts_the_layers(tmp_path: Path):
    save_tiny(tmp_path)
    seen: list[tuple[str, int, int]] = []

    load_model(tmp_path, "cpu", "float32", lambda *step: seen.append(step))

    assert seen == [("weights", 0, 2), ("weights", 1, 2), ("weights", 2, 2)]


def test_the_end_tokens_of_generation_win(tmp_path: Path):
    save_tiny(tmp_path)
    assert load(tmp_path).config.eos_token_ids == (3, 7)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": 9})

    assert load(tmp_path).config.eos_token_ids == (9,)


def test_defaults_of_sampling_are_those_of_the_checkpoint(tmp_path: Path):
    save_tiny(tmp_path)
    settings = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "max_new_tokens": 7}
    write_json(tmp_path / "generation_config.json", settings)
    assert facts_of(tmp_path).sampling == SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95)

    (tmp_path / "generation_config.json").unlink()
    assert facts_of(tmp_path).sampling == SamplingDefaults()


def facts_of(path: Path) -> RunnerFacts:
    config = EngineConfig(model=str(path), dtype="float32", num_blocks=8, max_num_batched_tokens=64)
    return build_runner(config, lambda _: (Sampling(), 0), lambda *_: None)[1]


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def configure(folder: Path, **changes: object) -> None:
    """Change fields of config.json."""
    file = folder / "config.json"
    write_json(file, {**json.loads(file.read_text()), **changes})


def reweigh(folder: Path, name: str, weight: torch.Tensor | None) -> None:
    """Replace one weight, or leave it out."""
    weights = load_file(folder / WEIGHTS)
    weights.pop(name)
    if weight is not None:
        weights[name] = weight
    save_file(weights, folder / WEIGHTS)


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


Damage = Callable[[Path], object]
EMBEDDING = "model.embed_tokens.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"

BROKEN_FOLDERS: dict[str, tuple[Damage, str]] = {
    "no config.json": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "no architecture": (lambda f: configure(f, architectures=None), "names no architecture"),
    "another architecture": (
        lambda f: configure(f, architectures=["BertModel"], model_type="bert"),
        "BertModel is no decoder-only language model",
    ),
    "a kind unknown to transformers": (
        lambda f: configure(f, model_type="zzz"),
        "config.json is not usable",
    ),
    "a size of the wrong type": (
        lambda f: configure(f, hidden_size="wide"),
        "config.json is not usable: Validation error for field 'hidden_size'",
    ),
    "a negative size": (lambda f: configure(f, vocab_size=-1), "vocab_size is -1"),
    "no heads": (lambda f: configure(f, num_attention_heads=0), "config.json is not usable"),
    "heads that do not divide": (
        lambda f: configure(f, num_key_value_heads=4),
        "6 query heads cannot share 4 KV heads",
    ),
    "an endless context": (
        lambda f: configure(f, max_position_embeddings=10**15),
        "a context of 1000000000000000",
    ),
    "another activation": (
        lambda f: configure(f, hidden_act="relu"),
        "the activation 'relu' is not supported",
    ),
    "biases that are missing": (
        lambda f: configure(f, attention_bias=True),
        "the weight 'model.layers.0.self_attn.q_proj.bias' is missing",
    ),
    "a layer too few": (
        lambda f: configure(f, num_hidden_layers=1),
        "'model.layers.1.input_layernorm.weight' is not a weight of a Llama model that is",
    ),
    "quantised": (
        lambda f: configure(f, quantization_config={"quant_method": "gptq", "bits": 4}),
        "quantised safetensors are not supported",
    ),
    "other rotary scaling": (
        lambda f: configure(f, rope_parameters={**DEFAULT_ROPE, "rope_type": "proportional"}),
        "rotary scaling of the type 'proportional' is not supported",
    ),
    **{
        f"{kind} scaling with {change}": (
            lambda f, kind=kind, change=change: configure(
                f,
                rope_parameters={
                    **DEFAULT_ROPE,
                    **dict.fromkeys(("factor", "high_freq_factor"), 4.0),
                    "low_freq_factor": 1.0,
                    "original_max_position_embeddings": 64,
                    **dict.fromkeys(("short_factor", "long_factor"), [1.0] * 5),
                    "rope_type": kind,
                    **change,
                },
            ),
            problem,
        )
        for kind, change, problem in [
            ("linear", {"factor": "x"}, "factor of rotary positions is 'x', not a positive"),
            ("linear", {"factor": 10**400}, "factor of rotary positions is 1000"),
            ("linear", {"factor": None}, "factor of rotary positions is None"),
            ("yarn", {"beta_fast": -1}, "beta_fast of rotary positions is -1"),
            ("yarn", {"mscale": "x", "mscale_all_dim": 1.0}, "mscale of rotary positions is 'x'"),
            ("llama3", {"low_freq_factor": True}, "low_freq_factor of rotary positions is True"),
            ("llama3", {"low_freq_factor": 4.0}, "is 4.0, not under high_freq_factor, 4.0"),
            ("longrope", {"short_factor": [1.0] * 4}, "4 rotary frequencies have a factor, but"),
            ("longrope", {"short_factor": ["x"] * 5}, "short_factor is 'x', not a positive"),
            ("default", {"rope_theta": 1.0}, "rope_theta is 1.0, not a number above 1"),
        ]
    },
    "a theta that is no number": (
        lambda f: configure(f, rope_parameters={"rope_type": "default", "rope_theta": "x"}),
        "rope_theta is 'x'",
    ),
    "corrupt generation_config.json": (
        lambda f: (f / "generation_config.json").write_text("{"),
        "generation_config.json: not valid JSON",
    ),
    "an end token that is a text": (
        lambda f: write_json(f / "generation_config.json", {"eos_token_id": "</s>"}),
        "eos_token_id is '</s>', not ids of tokens",
    ),
    **{
        f"the end token {token}": (
            lambda f, token=token: write_json(
                f / "generation_config.json", {"eos_token_id": [3, token]}
            ),
            problem,
        )
        for token, problem in [
            (-1, "the end token -1 is not one of the 101 tokens"),
            (101, "the end token 101 is not one of the 101 tokens"),
            (True, "eos_token_id is [3, True], not ids of tokens"),
        ]
    },
    "half a top_k": (
        lambda f: write_json(f / "generation_config.json", {"top_k": 20.5}),
        "top_k is 20.5, not a whole number from -1 to",
    ),
    "a temperature that is none": (
        lambda f: write_json(f / "generation_config.json", {"temperature": "hot"}),
        "temperature is 'hot', not from 0.0 to 100.0",
    ),
    "a top_p of nothing": (
        lambda f: write_json(f / "generation_config.json", {"top_p": 0}),
        "top_p is 0, not from",
    ),
    "missing weight": (lambda f: reweigh(f, DOWN, None), f"the weight '{DOWN}' is missing"),
    "wrong shape": (
        lambda f: reweigh(f, DOWN, torch.zeros(48, 81)),
        f"'{DOWN}' has the shape [48, 81], expected [48, 80]",
    ),
    "integer weight": (
        lambda f: reweigh(f, DOWN, torch.zeros(48, 80, dtype=torch.int8)),
        f"'{DOWN}' is stored as I8; of safetensors only F64, F32, F16, BF16 are supported",
    ),
    "a weight of eight bits": (
        lambda f: reweigh(f, DOWN, torch.zeros(48, 80).to(torch.float8_e4m3fn)),
        f"'{DOWN}' is stored as F8_E4M3",
    ),
    "a weight in two files": (
        lambda f: (
            (f / WEIGHTS).rename(f / "part0.safetensors"),
            save_file({DOWN: torch.zeros(48, 80)}, f / "part1.safetensors"),
        ),
        f"part1.safetensors: '{DOWN}' is in another file of the folder too",
    ),
    "another family's description": (
        lambda f: configure(f, model_type="mistral"),
        "names LlamaForCausalLM, but its model_type is 'mistral', another's",
    ),
    "truncated weights": (lambda f: cut(f / WEIGHTS, 20_000), "model.safetensors: not a readable"),
    "corrupt weights": (
        lambda f: (f / WEIGHTS).write_bytes(bytes(range(256)) * 9),
        "model.safetensors: not a readable",
    ),
    "index of a missing file": (
        lambda f: write_json(
            f / "model.safetensors.index.json", {"weight_map": {"x": "gone.safetensors"}}
        ),
        "the first is gone.safetensors",
    ),
}


@pytest.fixture(scope="module")
def sound_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder)
    return folder


def assert_refused(path: Path, problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(path)
    message = str(caught.value)
    assert str(path) in message
    assert problem in message
    assert "\n" not in message


@pytest.mark.parametrize("name", BROKEN_FOLDERS)
def test_a_broken_folder_is_told_in_one_sentence(name: str, sound_folder: Path, tmp_path: Path):
    folder = tmp_path / "model"
    shutil.copytree(sound_folder, folder)
    damage, problem = BROKEN_FOLDERS[name]
    damage(folder)

    assert_refused(folder, problem)


GGUF_NUMBERS: dict[str, int | float | str] = {
    "vocab_size": 8,
    "embedding_length": 12,
    "feed_forward_length": 10,
    "block_count": 1,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "context_length": 64,
}
GGUF_SHAPES = {
    "token_embd": (8, 12),
    "output_norm": (12,),
    "blk.0.attn_norm": (12,),
    "blk.0.attn_q": (12, 12),
    "blk.0.attn_k": (6, 12),
    "blk.0.attn_v": (6, 12),
    "blk.0.attn_output": (12, 12),
    "blk.0.ffn_norm": (12,),
    "blk.0.ffn_gate": (10, 12),
    "blk.0.ffn_up": (10, 12),
    "blk.0.ffn_down": (12, 10),
}


GGUF_KINDS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def write_gguf(
    path: Path,
    changes: dict[str, Any] | None = None,
    shapes: dict[str, tuple[int, ...] | None] | None = None,
    architecture: str = "llama",
    stored: torch.dtype = torch.float32,
    end_token: int = 3,
) -> None:
    """A tiny Llama as a GGUF file; None leaves a number or a tensor out."""
    writer = GGUFWriter(path, architecture)
    writer.add_eos_token_id(end_token)
    for key, value in {**GGUF_NUMBERS, **(changes or {})}.items():
        name = f"llama.{key}"
        if isinstance(value, int):
            writer.add_int32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif value is not None:
            writer.add_array(name, value)
    for name, shape in {**GGUF_SHAPES, **(shapes or {})}.items():
        if shape is not None:
            full_name = name if name.endswith(".bias") else f"{name}.weight"
            values = torch.full(shape, 0.1, dtype=stored)
            kind = GGMLQuantizationType[GGUF_KINDS[stored]]
            writer.add_tensor(full_name, values.view(torch.uint8).numpy(), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_small_gguf_file_loads(tmp_path: Path):
    write_gguf(tmp_path / "tiny.gguf")

    config = load(tmp_path / "tiny.gguf").config

    assert (config.head_dim, config.num_kv_heads, config.tied_embeddings) == (
        6,
        config.num_heads // 2,
        True,
    )


@pytest.mark.parametrize(
    ("stored", "multiplies", "dtype"),
    [
        (torch.bfloat16, True, torch.bfloat16),
        (torch.bfloat16, False, torch.float32),
        (torch.float32, True, torch.float32),
        (torch.float16, True, torch.float32),
    ],
)
@pytest.mark.parametrize("is_gguf", [False, True])
def test_bfloat16_is_taken_where_weights_have_no_more_and_the_cpu_multiplies_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stored: torch.dtype,
    multiplies: bool,
    dtype: torch.dtype,
    is_gguf: bool,
):
    monkeypatch.setattr(loading, "_cpu_multiplies_bfloat16", lambda: multiplies)
    path = tmp_path / "tiny.gguf"
    if is_gguf:
        write_gguf(path, stored=stored)
    else:
        path = tmp_path
        save_tiny(path)
        reweigh(path, EMBEDDING, load_file(path / WEIGHTS)[EMBEDDING].to(stored))

    assert load(path, dtype="auto").dtype is dtype
    assert load(path, dtype="bfloat16").dtype is torch.bfloat16
    assert load(path, dtype="float32").dtype is torch.float32


def test_rotary_rows_of_a_gguf_file_are_put_back_in_order(tmp_path: Path):
    """llama.cpp's converter stores the two rows of a rotary pair as neighbours."""
    heads, head_dim, hidden = 2, 6, 12
    original = np.random.default_rng(0).normal(size=(heads * head_dim, hidden)).astype(np.float32)
    # LlamaModel.permute of llama.cpp/convert_hf_to_gguf.py
    stored = original.reshape(heads, 2, head_dim // 2, hidden).swapaxes(1, 2)
    writer = GGUFWriter(tmp_path / "q.gguf", "llama")
    writer.add_tensor("blk.0.attn_q.weight", stored.reshape(original.shape).copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_gguf(tmp_path / "tiny.gguf")
    config = config_from_gguf(read_gguf(tmp_path / "tiny.gguf"))
    name = "model.layers.0.self_attn.q_proj.weight"

    found = GgufWeights(read_gguf(tmp_path / "q.gguf"), config).get(name, original.shape)

    assert np.array_equal(found.numpy(), original)


def flip_type(file: Path) -> None:
    """Say that the first tensor is stored in a type that nobody dequantises: I8."""
    content = bytearray(file.read_bytes())
    at = content.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    content[at : at + 4] = struct.pack("<I", 24)
    file.write_bytes(content)


BROKEN_GGUFS: dict[str, tuple[Damage, str]] = {
    "truncated": (lambda p: (write_gguf(p), cut(p, p.stat().st_size - 200)), "past the end"),
    "bad magic": (lambda p: p.write_bytes(b"GGML" + bytes(99)), "not a GGUF file"),
    "another architecture": (
        lambda p: write_gguf(p, architecture="mamba"),
        "the architecture 'mamba' is not supported",
    ),
    "missing tensor": (
        lambda p: write_gguf(p, shapes={"blk.0.ffn_up": None}),
        "'model.layers.0.mlp.up_proj.weight' is missing",
    ),
    "wrong shape": (
        lambda p: write_gguf(p, shapes={"blk.0.ffn_up": (10, 13)}),
        "'blk.0.ffn_up.weight' has the shape [10, 13], expected [10, 12]",
    ),
    "unknown storage": (lambda p: (write_gguf(p), flip_type(p)), "stored as I8"),
    "one bias of three": (
        lambda p: write_gguf(p, shapes={"blk.0.attn_q.bias": (12,)}),
        "'model.layers.0.self_attn.k_proj.bias' is missing",
    ),
    "a weight too many": (
        lambda p: write_gguf(p, shapes={"blk.0.attn_q_norm": (6,)}),
        "'blk.0.attn_q_norm.weight' is not a weight of a Llama model that is configured",
    ),
    "half rotated": (lambda p: write_gguf(p, {"rope.dimension_count": 4}), "rotating 4 of 6"),
    "an end token that is none": (
        lambda p: write_gguf(p, end_token=8),
        "the end token 8 is not one of the 8 tokens",
    ),
    "experts": (lambda p: write_gguf(p, {"expert_count": 8}), "mixture-of-experts"),
    "other scaling": (lambda p: write_gguf(p, {"rope.scaling.type": "ntk"}), "the type 'ntk'"),
    "endless scaling": (
        lambda p: write_gguf(
            p, {"rope.scaling.type": "linear", "rope.scaling.factor": float("inf")}
        ),
        "no usable llama.rope.scaling.factor",
    ),
    **{
        f"{key} is {value}": (
            lambda p, key=key, value=value: write_gguf(p, {key: value}),
            f"no usable llama.{key}",
        )
        for key, value in [
            ("block_count", None),
            ("block_count", -3),
            ("attention.head_count", 0),
            ("attention.head_count", 2.0),
            ("attention.head_count_kv", [1, 1]),
            ("context_length", "long"),
            ("attention.layer_norm_rms_epsilon", float("nan")),
        ]
    },
}


@pytest.mark.parametrize("name", BROKEN_GGUFS)
def test_a_broken_gguf_file_is_told_in_one_sentence(name: str, tmp_path: Path):
    damage, problem = BROKEN_GGUFS[name]
    damage(tmp_path / "broken.gguf")

    assert_refused(tmp_path / "broken.gguf", problem)


@pytest.mark.parametrize(
    ("device", "dtype", "problem"),
    [
        ("tpu", "float32", "device is 'tpu', not auto, cpu or cuda."),
        ("cpu", "int8", "dtype is 'int8', not auto, float32 or bfloat16."),
        pytest.param(
            "cuda",
            "float32",
            "this machine or this build of torch has no CUDA",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has CUDA"),
        ),
    ],
)
def test_unknown_devices_and_dtypes_are_named(device: str, dtype: str, problem: str):
    with pytest.raises(ValueError, match=problem):
        load(Path("never-read"), device, dtype)


def test_int8_is_for_any_device_and_fp8_for_gpus():
    for device in (torch.device("cpu"), torch.device("cuda")):
        for quantization in ("none", "int8"):
            loading.check_quantization(quantization, device)
    loading.check_quantization("fp8", torch.device("cuda"))
    with pytest.raises(ValueError, match=r"fp8, which runs on a GPU; device is cpu\.$"):
        loading.check_quantization("fp8", torch.device("cpu"))


def test_quantisation_and_determinism_are_for_layers_of_our_own(tmp_path: Path):
    OTHERS["OLMo2"].save(tmp_path)

    with pytest.raises(ValueError, match="those of Olmo2ForCausalLM are run by transformers"):
        load_model(tmp_path, "cpu", "float32", lambda *_: None, quantization="int8")
    with pytest.raises(ValueError, match="the layers of Olmo2ForCausalLM are run by transformers"):
        load_model(tmp_path, "cpu", "float32", lambda *_: None, deterministic=True)


def test_weights_that_a_gpu_has_no_room_for_are_told_with_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    save_tiny(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loading, "load_decoder", full)
    with pytest.raises(ValueError, match=r"^0\.0 GiB of weights do not fit into what is free"):
        load_model(tmp_path, "cpu", "float32", lambda *_: None)


@pytest.mark.parametrize("head_dim", [10, 32])  # plain and native layers
def test_int8_has_no_weights_that_are_not_finite(head_dim: int, tmp_path: Path):
    save_tiny(tmp_path, head_dim=head_dim)
    reweigh(tmp_path, DOWN, torch.full((48, 80), float("nan")))

    with pytest.raises(CheckpointError, match=f"^{tmp_path}: a weight that is not finite cannot"):
        load_model(tmp_path, "cpu", "float32", lambda *_: None, quantization="int8")
