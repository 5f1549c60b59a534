"""Native model families, by the name of their transformers class."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from cadenza.engine.models.batch import ModelBatch
from cadenza.engine.models.config import (
    ModelConfig,
    config_from_folder,
    config_from_gguf,
    folder_architecture,
)
from cadenza.engine.models.llama import Llama, load_llama
from cadenza.engine.models.weights import (
    FolderWeights,
    GgufWeights,
    ProgressCallback,
    WeightSource,
)

__all__ = [
    "FAMILIES",
    "FolderWeights",
    "GgufWeights",
    "Llama",
    "ModelBatch",
    "ModelConfig",
    "ProgressCallback",
    "WeightSource",
    "config_from_folder",
    "config_from_gguf",
    "folder_architecture",
]

Loader: TypeAlias = Callable[
    [ModelConfig, WeightSource, torch.dtype, torch.device, ProgressCallback], Llama
]

FAMILIES: dict[str, Loader] = {
    "LlamaForCausalLM": load_llama,
}
