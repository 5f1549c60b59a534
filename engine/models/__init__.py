"""Models: those whose layers are our own, described by family, and all others by transformers."""

from __future__ import annotations

from cadenza.engine.models.batch import ModelBatch
from cadenza.engine.models.config import DecoderConfig, ModelConfig
from cadenza.engine.models.decoder import Decoder, has_native_layers, load_decoder
from cadenza.engine.models.families import BY_ARCHITECTURE, FAMILIES
from cadenza.engine.models.folder_config import config_from_folder, folder_architecture
from cadenza.engine.models.gguf_config import config_from_gguf
from cadenza.engine.models.model import Model
from cadenza.engine.models.transformers_loading import (
    load_transformers_model,
    transformers_model_config,
)
from cadenza.engine.models.weight_cache import kept
from cadenza.engine.models.weights import (
    HEAD,
    FolderWeights,
    GgufWeights,
    ProgressCallback,
    WeightSource,
)

__all__ = [
    "BY_ARCHITECTURE",
    "FAMILIES",
    "HEAD",
    "Decoder",
    "DecoderConfig",
    "FolderWeights",
    "GgufWeights",
    "Model",
    "ModelBatch",
    "ModelConfig",
    "ProgressCallback",
    "WeightSource",
    "config_from_folder",
    "config_from_gguf",
    "folder_architecture",
    "has_native_layers",
    "kept",
    "load_decoder",
    "load_transformers_model",
    "transformers_model_config",
]
