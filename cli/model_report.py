"""`cadenza models show`: a model before it is loaded."""

from __future__ import annotations

from cadenza.checkpoints import CheckpointError, locate
from cadenza.cli.errors import UsageError
from cadenza.cli.options import ServeOptions
from cadenza.cli.output import write_table
from cadenza.engine.inspection import Inspection, inspect_model

_COMPUTED_BY = {
    "native": "by kernels that do all of them in one call",
    "plain": "by one operation after another",
    "transformers": "by transformers, attention over the paged cache; slower",
}


def report(model: str) -> int:
    """Write what a model is; 0 if it fits beside the cache of `cadenza serve`, else 1.

    Raises:
        UsageError: it is not there, or cannot be served.
    """
    try:
        found = inspect_model(locate(model).path)
    except CheckpointError as error:
        raise UsageError(str(error)) from error
    needed = found.weight_bytes + _cache_bytes(found)
    fits = found.available_bytes is None or needed <= found.available_bytes
    write_table(_rows(found, needed, fits))
    return 0 if fits else 1


def _rows(found: Inspection, needed: int, fits: bool) -> list[tuple[str, ...]]:
    config = found.config
    there = "unknown" if found.available_bytes is None else _size(found.available_bytes)
    return [
        ("family", f"{found.family} ({config.architecture})"),
        ("layers", f"{config.num_layers}, computed {_COMPUTED_BY[found.layers]}"),
        ("parameters", f"{found.num_parameters:,}"),
        ("weights", f"{_size(found.weight_bytes)} as {found.dtype} on {found.device}"),
        ("KV cache", f"{_size(found.kv_token_bytes)} a token"),
        (
            "context",
            f"{config.max_positions:,} tokens, of"
            f" {_size(config.max_positions * found.kv_token_bytes)}",
        ),
        (
            "memory",
            f"{_size(needed)} with a cache of {_size(_cache_bytes(found))}, {there} available:"
            f" {'it fits' if fits else 'it does not fit'}",
        ),
    ]


def _cache_bytes(found: Inspection) -> int:
    """What `cadenza serve` takes unless it is told otherwise, room to swap included.

    On a GPU it takes what there is; a cache is of use from 1 GiB on, as on a CPU.
    """
    swap = int(ServeOptions().swap_space * (1 << 30)) if found.device == "cpu" else 0
    return (1 << 30) + swap


def _size(num_bytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"
