"""Sampling on the CPU by our own C++ kernels, in one pass over the vocabulary or two.

Greedy rows and those with a temperature alone take one pass, filters another. The token is that of
the reference but where two scores, or a sum and top-p, differ by no more than fp32 rounds. It is
the same at every level of instruction sets, on any number of threads and in any batch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cadenza.kernels.native import library
from cadenza.kernels.sampling.settings import Int32Array, SettingsArray

_ADDRESS, _SIZE, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class _Kernels(NamedTuple):
    levels: tuple[str, ...]
    functions: ctypes.CDLL


@cache
def _kernels() -> _Kernels | None:
    found = library()
    if found is None:
        return None
    functions = found.functions
    try:
        function = functions.cadenza_sample
    except AttributeError:
        return None  # compiled from other sources
    function.argtypes = (
        *(_NUMBER, _NUMBER, _SIZE, _SIZE),
        *(_ADDRESS, _SIZE, _ADDRESS, _ADDRESS, _ADDRESS),
    )
    function.restype = _NUMBER
    return _Kernels(found.levels, functions)


def levels() -> tuple[str, ...]:
    """Name the instruction sets that there are kernels for, the fastest last; none: no library."""
    found = _kernels()
    return () if found is None else found.levels


def is_supported(logits: Tensor) -> bool:
    """Tell whether there are kernels for these logits."""
    return logits.is_cpu and logits.dtype == torch.float32 and _kernels() is not None


def sample(
    logits: Tensor,
    settings: SettingsArray,
    shaped: Mapping[int, Tensor],
    level: str | None = None,
) -> Int32Array:
    """Return a token for each row of logits [rows, vocab_size], as the operation does.

    level: one of `levels()`. Raises MemoryError.
    """
    found, number = _at(level)
    rows, size = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    instead = {row: values.contiguous() for row, values in shaped.items()}
    addresses = None
    if instead:
        addresses = np.zeros(rows, dtype=np.uint64)
        for row, values in instead.items():
            addresses[row] = values.data_ptr()
    settings = np.ascontiguousarray(settings)
    tokens = np.empty(rows, dtype=np.int32)
    if found.functions.cadenza_sample(
        number,
        torch.get_num_threads(),
        rows,
        size,
        logits.data_ptr(),
        logits.stride(0),
        None if addresses is None else addresses.ctypes.data,
        settings.ctypes.data,
        tokens.ctypes.data,
    ):
        raise MemoryError(f"no memory to filter {size} logits")
    return tokens


def _at(level: str | None) -> tuple[_Kernels, int]:
    found = _kernels()
    if found is None:
        raise RuntimeError("the C++ kernels were not compiled, or cannot be loaded")
    if level is not None and level not in found.levels:
        raise ValueError(f"level is {level!r}, not one of {', '.join(found.levels)}")
    return found, found.levels.index(level) if level else len(found.levels) - 1
