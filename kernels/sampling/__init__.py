"""Choosing a token for each row of logits, a function of that row and its settings alone."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from cadenza.kernels.sampling import native
from cadenza.kernels.sampling.columns import Columns, HostColumns, columns_of
from cadenza.kernels.sampling.reference import sample_reference
from cadenza.kernels.sampling.settings import (
    LEAST_TEMPERATURE,
    SETTINGS,
    Int32Array,
    SettingsArray,
)
from cadenza.kernels.triton_backend import uses_triton

__all__ = [
    "LEAST_TEMPERATURE",
    "SETTINGS",
    "Columns",
    "HostColumns",
    "SettingsArray",
    "columns_of",
    "sample",
    "sample_by_columns",
    "sample_reference",
]


def sample(logits: Tensor, settings: SettingsArray, shaped: Mapping[int, Tensor]) -> Int32Array:
    """Return a token for each row, -1 where the row fails.

    logits: [rows, vocab_size] fp32, not written to; settings: [rows]; shaped: row -> the logits
    [vocab_size] that it is sampled from instead. A row fails if there is NaN or +inf, or nothing
    above -inf, in either. Raises MemoryError.
    """
    if uses_triton(logits.device):
        columns = columns_of(settings, logits.shape[1]).sent(logits.device)
        changed = logits.clone() if shaped else logits
        for row, values in shaped.items():
            changed[row] = values
        return sample_by_columns(logits, columns, changed).cpu().numpy()
    if native.is_supported(logits):
        return native.sample(logits, settings, shaped)
    return sample_reference(logits, settings, shaped)


def sample_by_columns(logits: Tensor, columns: Columns, shaped: Tensor) -> Tensor:
    """Do as `sample` where Triton does; [rows] int32 on the device, for which nobody waits.

    shaped: [rows, vocab_size], what is sampled from; `logits` itself where nothing changes them.
    """
    from cadenza.kernels.sampling.triton import sample_triton

    return sample_triton(logits, columns, shaped)
