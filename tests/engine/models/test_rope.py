"""Rotary frequencies against transformers' own, and the context that they serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from cadenza.checkpoints import read_folder
from cadenza.engine.models.config import DecoderConfig
from cadenza.engine.models.families import BY_ARCHITECTURE
from cadenza.engine.models.folder_config import config_from_folder
from tests.engine.conftest import LLAMA3_ROPE
from tests.engine.models.tiny import LONGROPE, TINY, YARN, Tiny, open_runner, scaled

LONG = {**YARN["rope_parameters"], "mscale": 0.7, "mscale_all_dim": 0.3, "truncate": False}
SCALED = {
    "linear": scaled("linear", factor=3.0),
    "llama3": {"rope_parameters": LLAMA3_ROPE},
    "yarn": YARN,
    "yarn, all settings": {"rope_parameters": {**LONG, "beta_slow": 2.0}},
    "yarn, beyond what it stretches": scaled(
        "yarn", factor=0.5, original_max_position_embeddings=64
    ),
    "longrope": LONGROPE,
    "longrope with a factor": scaled("longrope", **{**LONGROPE["rope_parameters"], "factor": 8.0}),
    "longrope of no length": scaled(
        "longrope", **{**LONGROPE["rope_parameters"], "attention_factor": 1.5}
    ),
    "dynamic": scaled("dynamic", factor=2.0),
}


def described(
    tiny: Tiny, folder: Path, max_model_len: int | None = None
) -> tuple[Any, DecoderConfig]:
    config = tiny.config()
    config.architectures = [f"{tiny.kind}ForCausalLM"]
    config.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"never read")
    family = BY_ARCHITECTURE[config.architectures[0]]
    return config, config_from_folder(read_folder(folder), family, max_model_len)


@pytest.mark.parametrize("name", SCALED)
def test_frequencies_are_those_of_transformers(name: str, tmp_path: Path):
    config, ours = described(Tiny("Llama", {"head_dim": 8, **SCALED[name]}), tmp_path)
    kind = config.rope_parameters["rope_type"]

    expected, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))

    torch.testing.assert_close(ours.ropes[0].frequencies(), expected, rtol=1e-6, atol=0.0)
    assert ours.ropes[0].attention_factor == pytest.approx(factor)


def test_short_factors_serve_the_original_context_and_long_ones_all_that_was_asked_for(
    tmp_path: Path,
):
    tiny = Tiny("Llama", {"head_dim": 8, **LONGROPE})

    _, short = described(tiny, tmp_path)
    config, long = described(tiny, tmp_path, 129)

    expected, _ = ROPE_INIT_FUNCTIONS["longrope"](config, torch.device("cpu"), seq_len=129)
    assert (short.max_positions, long.max_positions) == (128, 256)
    torch.testing.assert_close(long.ropes[0].frequencies(), expected, rtol=1e-6, atol=0.0)


def test_the_runner_asks_for_the_context_that_it_is_asked_for(tmp_path: Path):
    TINY["Phi-3, rotated in part, with LongRoPE"].save(tmp_path)

    lengths = [open_runner(tmp_path, max_model_len=asked)[1] for asked in (None, 100, 200)]

    assert [facts.max_model_len for facts in lengths] == [128, 100, 200]
