"""What the host tells a device of a step: one copy from pinned memory, that nobody waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cadenza.engine.device import Device

_ALIGNMENT = 16  # bytes; Triton's kernels are compiled for addresses that are multiples of it
_LEAST_BYTES = 1 << 16
_DTYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}

Array = npt.NDArray[Any]


class Uploads:
    """Memory on both sides that one step after another uses.

    Whoever packs has waited for the outcome of the step before.
    """

    def __init__(self, device: Device, target: torch.device) -> None:
        self._device = device
        self._host = device.host_memory(0)
        self._target = torch.empty(0, dtype=torch.uint8, device=target)

    def pack(self, arrays: Sequence[Array]) -> Callable[[], list[Tensor]]:
        """Pack arrays, of int32, int64 or floats, and return what sends them.

        That is to be called in the stream that computes, and returns each on the device, valid
        until the next are sent.
        """
        starts = [0]
        for array in arrays:
            starts.append(starts[-1] + -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT)
        self._grow(starts[-1])
        host, target = self._host[: starts[-1]], self._target[: starts[-1]]
        for start, array in zip(starts, arrays, strict=False):
            _part(host, start, array).numpy()[...] = array

        def send() -> list[Tensor]:
            target.copy_(host, non_blocking=True)
            return [
                _part(target, start, array) for start, array in zip(starts, arrays, strict=False)
            ]

        return send

    def _grow(self, num_bytes: int) -> None:
        if num_bytes > len(self._host):
            size = max(_LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
            self._host = self._device.host_memory(size)
            self._target = torch.empty(size, dtype=torch.uint8, device=self._target.device)


def _part(memory: Tensor, start: int, array: Array) -> Tensor:
    """Return the part of `memory` that holds an array, in its dtype and shape."""
    part = memory[start : start + array.nbytes]
    return part.view(_DTYPES[array.dtype]).view(array.shape)
