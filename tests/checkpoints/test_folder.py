"""Hugging Face folders: what has to be there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cadenza.checkpoints import CheckpointError, read_folder

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A complete folder, its weights in two empty files."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    for part in ("a", "b"):
        (tmp_path / f"{part}.safetensors").write_bytes(b"")
    return tmp_path


def write_index(folder: Path, value: object) -> None:
    (folder / INDEX).write_text(json.dumps(value))


def test_a_folder_is_described(folder: Path):
    found = read_folder(folder)

    assert found.config == {"model_type": "llama"}
    assert found.tokenizer == folder / "tokenizer.json"
    assert [path.name for path in found.weights] == ["a.safetensors", "b.safetensors"]


def test_an_index_says_which_files_hold_the_weights(folder: Path):
    write_index(folder, {"weight_map": {"x": "b.safetensors", "y": "b.safetensors"}})

    assert read_folder(folder).weights == (folder / "b.safetensors",)


def test_what_lies_beside_whole_weights_is_not_loaded(folder: Path):
    (folder / "model.safetensors").write_bytes(b"")

    assert read_folder(folder).weights == (folder / "model.safetensors",)


BREAKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no configuration": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "has no tokenizer.json"),
    "no weights": (lambda f: [p.unlink() for p in f.glob("*.safetensors")], "no *.safetensors"),
    "configuration is no JSON": (
        lambda f: (f / "config.json").write_text("{"),
        "config.json: not valid JSON",
    ),
    "configuration is no text": (
        lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"),
        "config.json: not valid JSON",
    ),
    "configuration is nested too deep": (
        lambda f: (f / "config.json").write_text("[" * 200_000),
        "config.json: not valid JSON",
    ),
    "configuration is no object": (
        lambda f: (f / "config.json").write_text("[]"),
        "config.json: not a JSON object",
    ),
    "configuration is a folder": (
        lambda f: ((f / "config.json").unlink(), (f / "config.json").mkdir()),
        "config.json: cannot be read",
    ),
    "empty index": (lambda f: write_index(f, {}), "the index has no weight_map"),
    "index of numbers": (lambda f: write_index(f, {"weight_map": {"x": 1}}), "1 is not a file"),
    "index of lists": (lambda f: write_index(f, {"weight_map": {"x": []}}), "[] is not a file"),
    "index out of the folder": (
        lambda f: write_index(f, {"weight_map": {"x": "../b.safetensors"}}),
        "'../b.safetensors' is not a file name",
    ),
    "index of a missing file": (
        lambda f: write_index(f, {"weight_map": {"x": "c.safetensors"}}),
        "1 of 1 weight files are missing, the first is c.safetensors",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_folder_is_told_in_one_sentence(name: str, folder: Path):
    damage, problem = BREAKS[name]
    damage(folder)

    with pytest.raises(CheckpointError) as caught:
        read_folder(folder)

    assert str(folder) in str(caught.value)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path):
    with pytest.raises(CheckpointError, match="there is no such folder"):
        read_folder(tmp_path / "none")
