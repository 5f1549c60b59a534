"""What is refused of the models that transformers would run, before anybody is served."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from cadenza.checkpoints import CheckpointError
from cadenza.engine.loading import load_model
from tests.engine.models.tiny import BY_LAYER, LONGROPE, OTHERS, Tiny, scaled

WEIGHTS = "model.safetensors"
Change = Callable[[Path], object]


def load(path: Path, dtype: str = "float32") -> Any:
    return load_model(path, "cpu", dtype, lambda *_: None)


def configure(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def reweigh(folder: Path, name: str, weight: torch.Tensor | None) -> None:
    weights = load_file(folder / WEIGHTS)
    weights.pop(name)
    if weight is not None:
        weights[name] = weight
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


DEFAULT = scaled("default")
NORM = "model.layers.1.self_attn.q_norm.weight"
REFUSED: dict[str, tuple[Tiny, Change, str]] = {
    "an encoder with a decoder": (
        OTHERS["OLMo2"],
        lambda f: configure(f, model_type="t5", architectures=["T5ForConditionalGeneration"]),
        "T5ForConditionalGeneration is an encoder with a decoder; only decoders are supported",
    ),
    "vision": (
        OTHERS["OLMo2"],
        lambda f: configure(
            f, model_type="gemma3", architectures=["Gemma3ForConditionalGeneration"]
        ),
        "Gemma3ForConditionalGeneration has vision inputs; only models of text are supported",
    ),
    "no language model": (
        OTHERS["OLMo2"],
        lambda f: configure(f, architectures=["Olmo2ForSequenceClassification"]),
        "Olmo2ForSequenceClassification is no decoder-only language model of transformers",
    ),
    "layers of another kind": (
        OTHERS["OLMo3, with windows"],
        lambda f: configure(f, layer_types=[*BY_LAYER[:2], "linear_attention"]),
        "layers of the type 'linear_attention' are not supported",
    ),
    "a state in place of attention": (
        Tiny("Mamba", {"state_size": 4}),
        lambda _: None,
        "layers of the type 'linear_attention' are not supported",
    ),
    "longrope": (
        OTHERS["OLMo2"],
        lambda f: configure(
            f,
            **scaled(
                "longrope",
                short_factor=[1.0] * 4,
                long_factor=[2.0] * 4,
                original_max_position_embeddings=64,
            ),
        ),
        "LongRoPE is supported in Phi-3 models alone",
    ),
    "no heads": (
        OTHERS["GPT-NeoX"],
        lambda f: configure(f, num_attention_heads=0, num_key_value_heads=0),
        "",
    ),
    "no tokens": (OTHERS["OLMo2"], lambda f: configure(f, vocab_size=0), "vocab_size is 0"),
    "missing weight": (
        OTHERS["OLMo2"],
        lambda f: reweigh(f, NORM, None),
        f"the weight '{NORM}' is missing",
    ),
    "wrong shape": (
        OTHERS["OLMo2"],
        lambda f: reweigh(f, NORM, torch.zeros(47)),
        "transformers cannot load it",
    ),
    "truncated weights": (
        OTHERS["OLMo2"],
        lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:20_000]),
        "model.safetensors: not a readable safetensors file",
    ),
    "a layer too few": (
        OTHERS["OLMo2"],
        lambda f: configure(f, num_hidden_layers=2),
        "'model.layers.2.mlp.down_proj.weight' is not a weight of a model that is configured",
    ),
    "integer weight": (
        OTHERS["OLMo2"],
        lambda f: reweigh(f, NORM, torch.zeros(48, dtype=torch.int8)),
        f"'{NORM}' is stored as I8",
    ),
    "another's architecture": (
        OTHERS["OLMo2"],
        lambda f: configure(f, architectures=["GPTNeoXForCausalLM"]),
        "names GPTNeoXForCausalLM, but its model_type is 'olmo2', another's",
    ),
    "longrope of some layers": (
        OTHERS["OLMo3, with windows"],
        lambda f: configure(
            f,
            rope_parameters={
                "full_attention": LONGROPE["rope_parameters"],
                "sliding_attention": DEFAULT["rope_parameters"],
            },
        ),
        "LongRoPE is supported in Phi-3 models alone",
    ),
    "no attention to replace": (
        Tiny("Falcon", {"alibi": True}),
        lambda _: None,
        "FalconForCausalLM does not let its attention be replaced",
    ),
    "keys of another shape": (
        OTHERS["GPT-NeoX"],
        lambda f: configure(f, num_key_value_heads=2),
        "GPTNeoXForCausalLM does not run over a paged cache: shape mismatch",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_told_in_one_sentence(name: str, tmp_path: Path):
    tiny, change, problem = REFUSED[name]
    tiny.save(tmp_path)
    change(tmp_path)

    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)

    message = str(caught.value)
    assert str(tmp_path) in message
    assert problem in message
    assert "\n" not in message


def test_a_model_that_computes_something_else_over_the_cache_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As one that adds to its scores what our attention is not told of."""
    OTHERS["OLMo2"].save(tmp_path)
    attention = transformers.models.olmo2.modeling_olmo2.eager_attention_forward

    def biased(*arguments: Any, **options: Any) -> Any:
        return attention(*arguments, **{**options, "scaling": 0.9})

    monkeypatch.setattr(transformers.models.olmo2.modeling_olmo2, "eager_attention_forward", biased)

    with pytest.raises(CheckpointError, match="does not compute over a paged cache what it"):
        load(tmp_path)


def test_a_window_that_attention_is_not_told_of_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    OTHERS["OLMo2"].save(tmp_path)
    configure(tmp_path, sliding_window=64)

    with pytest.raises(CheckpointError, match="does not tell its attention of the sliding window"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "choice"),
    [("OLMo2", "attn_implementation"), ("Mixtral, with experts", "experts_implementation")],
)
def test_a_checkpoint_does_not_choose_what_computes_it(name: str, choice: str, tmp_path: Path):
    """transformers would take a name like this for a kernel to be loaded from the hub."""
    OTHERS[name].save(tmp_path)
    configure(tmp_path, **{choice: "someone/kernel"})

    assert load(tmp_path).layers == "transformers"


def test_code_of_a_checkpoint_is_not_run(tmp_path: Path):
    OTHERS["OLMo2"].save(tmp_path)
    classes = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    configure(tmp_path, auto_map=classes)
    ran = tmp_path / "ran"
    (tmp_path / "custom_generate").mkdir()
    for file in ("evil.py", "custom_generate/generate.py"):
        (tmp_path / file).write_text(f"open({str(ran)!r}, 'w')")

    assert load(tmp_path).config.architecture == "Olmo2ForCausalLM"

    assert not ran.exists()


@pytest.mark.parametrize("name", ["OLMo2", "GPT-NeoX"])
def test_bfloat16_passes_the_trial(name: str, tmp_path: Path):
    OTHERS[name].save(tmp_path)

    assert load(tmp_path, "bfloat16").dtype is torch.bfloat16
