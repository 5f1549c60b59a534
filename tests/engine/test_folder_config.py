"""A folder's configuration is read as transformers reads it, from new files and from old ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from cadenza.checkpoints import ModelFolder
from cadenza.engine.models import config_from_folder

SIZES = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FILES: dict[str, dict[str, Any]] = {
    "sizes alone": {},
    "all of it": {
        "num_key_value_heads": 2,
        "head_dim": 10,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "eos_token_id": [3, 7],
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    },
    "nothing ends a text": {"eos_token_id": None},
    "theta for itself": {"rope_theta": 500000.0, "rope_scaling": None},
    "linear, older": {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama3, older": {
        "rope_theta": 500000.0,
        "max_position_embeddings": 131072,
        "rope_scaling": {
            **LLAMA3,
            "rope_type": "llama3",
            "original_max_position_embeddings": 8192,
        },
    },
    "llama3 without its first context": {
        "rope_parameters": {**LLAMA3, "rope_type": "llama3", "rope_theta": 1e4},
    },
}


@pytest.mark.parametrize("name", FILES)
def test_a_folder_is_read_as_transformers_reads_it(name: str, tmp_path: Path):
    values = SIZES | FILES[name]
    (tmp_path / "config.json").write_text(json.dumps(values))
    folder = ModelFolder(
        path=tmp_path, config=values, generation={}, weights=(), tokenizer=tmp_path
    )
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)

    ours = config_from_folder(folder)

    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == theirs.head_dim
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.max_positions == theirs.max_position_embeddings
    assert ours.tied_embeddings == theirs.tie_word_embeddings
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    eos = theirs.eos_token_id
    assert [*ours.eos_token_ids] == (eos if isinstance(eos, list) else [eos] if eos else [])
    assert scaling_of(ours.rope_scaling) == scaling_of_theirs(theirs.rope_parameters)


def scaling_of(scaling: Any) -> tuple[Any, ...]:
    if scaling is None:
        return ("default",)
    if scaling.kind == "linear":
        return "linear", scaling.factor
    frequencies = scaling.low_freq_factor, scaling.high_freq_factor
    return "llama3", scaling.factor, *frequencies, scaling.original_max_positions


def scaling_of_theirs(parameters: dict[str, Any]) -> tuple[Any, ...]:
    names = ("rope_type", "factor", "low_freq_factor", "high_freq_factor")
    longest = "original_max_position_embeddings"
    return tuple(parameters[name] for name in (*names, longest) if name in parameters)
