"""Log-probabilities on the CPU by our own C++ kernels.

Exponentials are summed in double in one order, so that a row has the same bits at every level of
instruction sets, on any number of threads and in any batch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cadenza.kernels.logprobs.reference import RowLogprobs
from cadenza.kernels.native import library

_ADDRESS, _SIZE, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


@cache
def _function() -> Any:
    """The C function; None where there is none."""
    found = library()
    try:
        function = None if found is None else found.functions.cadenza_logprobs
    except AttributeError:
        return None  # compiled from other sources
    if function is not None:
        sizes = (_NUMBER, _NUMBER, _SIZE, _SIZE)
        asked = (_ADDRESS, _SIZE, _ADDRESS, _ADDRESS, _ADDRESS, _SIZE)
        function.argtypes = (*sizes, *asked, _ADDRESS, _ADDRESS, _ADDRESS)
        function.restype = _NUMBER
    return function


def is_supported(logits: Tensor) -> bool:
    """Tell whether there is a kernel for these logits."""
    return logits.is_cpu and logits.dtype == torch.float32 and _function() is not None


def logprobs(
    logits: Tensor,
    rows: Sequence[int],
    tokens: Sequence[int],
    counts: Sequence[int],
    level: str | None = None,
) -> list[RowLogprobs]:
    """Return the log-probabilities that are asked for, as the operation does.

    level: one of those that the library has. Raises MemoryError.
    """
    found, function = library(), _function()
    if found is None or function is None:
        raise RuntimeError("the C++ kernels were not compiled, or cannot be loaded")
    levels = found.levels
    size = logits.shape[1]
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    asked = np.array((rows, tokens, np.minimum(counts, size)), dtype=np.int32)  # [3, rows asked]
    most = int(asked[2].max(initial=0))
    sampled = np.empty(len(rows), dtype=np.float32)
    ids = np.empty((len(rows), most), dtype=np.int32)
    values = np.empty((len(rows), most), dtype=np.float32)
    if function(
        levels.index(level) if level else len(levels) - 1,
        torch.get_num_threads(),
        len(rows),
        size,
        logits.data_ptr(),
        logits.stride(0),
        *(column.ctypes.data for column in asked),
        most,
        sampled.ctypes.data,
        ids.ctypes.data,
        values.ctypes.data,
    ):
        raise MemoryError(f"no memory to rank {size} logits")
    return [
        RowLogprobs(one, ids[row, :count].copy(), values[row, :count].copy())
        for row, (one, count) in enumerate(zip(sampled.tolist(), asked[2].tolist(), strict=True))
    ]
