"""Find the parts of a Hugging Face model folder: configuration, weights, tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadenza.checkpoints.errors import CheckpointError

_INDEX = "model.safetensors.index.json"
_WEIGHTS = "model.safetensors"
_GENERATION = "generation_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """What a model folder holds. Every path in it exists."""

    path: Path
    config: dict[str, Any]  # config.json
    generation: dict[str, Any]  # generation_config.json; empty where there is none
    weights: tuple[Path, ...]  # safetensors files, at least one, sorted
    tokenizer: Path  # tokenizer.json


def read_folder(path: str | Path) -> ModelFolder:
    """Describe the model folder at `path`; no weights are read.

    Raises CheckpointError when a part is missing or is not valid JSON.
    """
    path = Path(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: there is no such folder.")
    config = read_json(path, "config.json")
    weights = _find_weights(path)
    tokenizer = path / "tokenizer.json"
    if not tokenizer.is_file():
        raise CheckpointError(f"{path}: the folder has no tokenizer.json.")
    has_generation = (path / _GENERATION).is_file()
    generation = read_json(path, _GENERATION) if has_generation else {}
    return ModelFolder(
        path=path, config=config, generation=generation, weights=weights, tokenizer=tokenizer
    )


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Return the object of a JSON file. Raises CheckpointError where there is none."""
    file = folder / name
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder}: the folder has no {name}.") from error
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}.") from error
    # brackets nested too deep are a RecursionError
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: not a JSON object.")
    return value


def _find_weights(folder: Path) -> tuple[Path, ...]:
    if (folder / _INDEX).is_file():
        return _indexed_weights(folder)
    if (folder / _WEIGHTS).is_file():  # whatever lies beside it, such as an adapter
        return (folder / _WEIGHTS,)
    found = tuple(sorted(folder.glob("*.safetensors")))
    if not found:
        raise CheckpointError(
            f"{folder}: the folder has no *.safetensors file; other weight formats are not loaded."
        )
    return found


def _indexed_weights(folder: Path) -> tuple[Path, ...]:
    weight_map = read_json(folder, _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / _INDEX}: the index has no weight_map.")
    # a file name only: an index must not lead out of its folder
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(f"{folder / _INDEX}: {name!r} is not a file name.")
    names = set(weight_map.values())
    missing = sorted(name for name in names if not (folder / name).is_file())
    if missing:
        raise CheckpointError(
            f"{folder}: {len(missing)} of {len(names)} weight files are missing,"
            f" the first is {missing[0]}."
        )
    return tuple(sorted(folder / name for name in names))
