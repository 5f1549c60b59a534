"""Loading a model: the checkpoint's kind, the device and dtype in force, then the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from cadenza.checkpoints import read_folder, read_gguf
from cadenza.engine.models import (
    BY_ARCHITECTURE,
    HEAD,
    DecoderConfig,
    FolderWeights,
    GgufWeights,
    Model,
    ModelConfig,
    ProgressCallback,
    WeightSource,
    config_from_folder,
    config_from_gguf,
    folder_architecture,
    kept,
    load_decoder,
    load_transformers_model,
    transformers_model_config,
)
from cadenza.kernels.triton_backend import uses_triton

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_model(
    path: Path,
    device: str,
    dtype: str,
    progress: ProgressCallback,
    max_model_len: int | None = None,
    quantization: str = "none",
    cache_bytes: int = 0,
    *,
    deterministic: bool = False,
) -> Model:
    """Load a GGUF file or a Hugging Face folder; families that are not ours, by transformers.

    device: "auto", "cpu" or "cuda"; dtype: "auto", "float32" or "bfloat16"; max_model_len: tokens
    that are asked for, None: what the model was made for; quantization: "none", "int8" or "fp8";
    cache_bytes: that dequantised weights may take on disk, see `kept`; deterministic: whether
    tokens shall not depend on the other rows of a step, as those of our families on a CPU never do.
    Raises CheckpointError when the checkpoint is not usable, ValueError for a device, dtype or
    quantization that is unknown or not there, for weights that the device has no room for, and for
    a model that cannot be quantised or deterministic.
    """
    resolved_device = resolve_device(device)
    named_dtype = named(dtype)
    check_quantization(quantization, resolved_device)
    checkpoint = open_checkpoint(path, max_model_len)
    config, source = checkpoint.config, checkpoint.source
    resolved_dtype = named_dtype or best_dtype(resolved_device, source)
    if not isinstance(config, DecoderConfig):
        _check_transformers(config, quantization, deterministic=deterministic)
    try:
        with torch.inference_mode():
            if isinstance(config, DecoderConfig):
                with kept(source, resolved_dtype, cache_bytes) as weights:
                    return load_decoder(
                        config,
                        weights,
                        resolved_dtype,
                        resolved_device,
                        progress,
                        quantization=quantization,
                        deterministic=deterministic,
                    )
            progress("weights", 0, 0)
            return load_transformers_model(path, config, resolved_dtype, resolved_device)
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"{source.num_values * resolved_dtype.itemsize / 2**30:.1f} GiB of weights do not fit"
            " into what is free of the GPU's memory."
        ) from error


def _check_transformers(config: ModelConfig, quantization: str, *, deterministic: bool) -> None:
    """Refuse what layers that transformers runs cannot be."""
    if quantization != "none":
        raise ValueError(
            f"quantization is {quantization}, which only models with layers of our own have; those"
            f" of {config.architecture} are run by transformers."
        )
    if deterministic:
        raise ValueError(
            f"deterministic is asked for, but the layers of {config.architecture} are run by"
            " transformers, whose results may depend on what else is in a step."
        )


class Checkpoint(NamedTuple):
    """What a file or folder describes, its weights open; of no family of ours: a `ModelConfig`."""

    config: ModelConfig
    source: WeightSource


def open_checkpoint(path: Path, max_model_len: int | None = None) -> Checkpoint:
    """Open a checkpoint without reading its weights. Raises CheckpointError as `load_model`."""
    if not path.is_dir():
        file = read_gguf(path)
        of_file = config_from_gguf(file, max_model_len)
        return Checkpoint(of_file, GgufWeights(file, of_file))
    folder = read_folder(path)
    architecture = folder_architecture(folder)
    if architecture not in BY_ARCHITECTURE:
        return Checkpoint(transformers_model_config(folder, architecture), FolderWeights(folder))
    config = config_from_folder(folder, BY_ARCHITECTURE[architecture], max_model_len)
    source = FolderWeights(folder)
    # as transformers: a head that is there is used, whatever the configuration says of tying
    is_tied = config.tied_embeddings and not source.has(HEAD)
    return Checkpoint(replace(config, tied_embeddings=is_tied), source)


def resolve_device(name: str) -> torch.device:
    """Return the device for a name of `EngineConfig.device`; "auto" prefers CUDA."""
    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {name!r}, not auto, cpu or cuda.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but this machine or this build of torch has no CUDA.")
    use_cuda = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if use_cuda else "cpu")


def named(name: str) -> torch.dtype | None:
    """Return the dtype for a name of `EngineConfig.dtype`; None for "auto"."""
    if name != "auto" and name not in _DTYPES:
        raise ValueError(f"dtype is {name!r}, not auto, float32 or bfloat16.")
    return _DTYPES.get(name)


def check_quantization(quantization: str, device: torch.device) -> None:
    """Raise ValueError unless `EngineConfig.quantization` is known, and there on the device."""
    if quantization not in ("none", "int8", "fp8"):
        raise ValueError(f"quantization is {quantization!r}, not none, int8 or fp8.")
    if quantization == "fp8" and not uses_triton(device):
        raise ValueError(f"quantization is fp8, which runs on a GPU; device is {device.type}.")


def best_dtype(device: torch.device, source: WeightSource) -> torch.dtype:
    """Return what is fast and loses little.

    That is bfloat16 on CUDA, and on a CPU that multiplies it (AVX512-BF16, AMX) if the weights are
    stored so; else float32. Eight bits and a scale, as in GGUF files, say more than bfloat16 does.
    """
    if device.type == "cuda" or (source.is_bfloat16 and _cpu_multiplies_bfloat16()):
        return torch.bfloat16
    return torch.float32


def _cpu_multiplies_bfloat16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
