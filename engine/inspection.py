"""What a model would take, told from its description and the sizes of its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from cadenza.engine.kv_cache import CacheShape
from cadenza.engine.loading import best_dtype, open_checkpoint, resolve_device
from cadenza.engine.models import DecoderConfig, ModelConfig, has_native_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A model on this machine, before it is loaded. Sizes are in bytes."""

    config: ModelConfig
    family: str
    layers: str  # what would compute them: native, plain or transformers
    device: str
    dtype: str
    num_parameters: int
    weight_bytes: int  # in memory, a tied embedding twice: as rows and as a packed head
    kv_token_bytes: int
    available_bytes: int | None  # of the device; None: the system does not tell


def inspect_model(path: Path) -> Inspection:
    """Describe a checkpoint; no weights are read. Raises CheckpointError as `load_model`."""
    config, source = open_checkpoint(path)
    device = resolve_device("auto")
    dtype = best_dtype(device, source)
    num_values = source.num_values
    if isinstance(config, DecoderConfig):
        family = config.family.name
        layers = "native" if has_native_layers(config, dtype, device) else "plain"
        head = config.vocab_size * config.hidden_size if config.tied_embeddings else 0
    else:
        family, layers, head = config.architecture, "transformers", 0
    shape = CacheShape(
        num_layers=config.num_layers,
        block_size=1,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=dtype,
    )
    return Inspection(
        config=config,
        family=family,
        layers=layers,
        device=device.type,
        dtype=str(dtype).removeprefix("torch."),
        num_parameters=num_values,
        weight_bytes=(num_values + head) * dtype.itemsize,
        kv_token_bytes=shape.block_bytes,
        available_bytes=available_bytes(device),
    )


def available_bytes(device: torch.device, meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Return how much memory can be taken, as the device or Linux tells."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return None
