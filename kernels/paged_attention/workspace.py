"""Memory that attention reuses from layer to layer and from step to step.

Fresh buffers of some megabytes come from the system page by page: at 32 rows of 300 tokens the
page faults took 290 ms of a step of 340 ms.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Workspace:
    """Named buffers that grow to the largest size asked for. Their contents are undefined."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the buffer `name` in this shape, on the device of `like`.

        It is valid until the same name and dtype are taken again.
        """
        size = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or len(buffer) < size or buffer.device != like.device:
            buffer = torch.empty(size, dtype=dtype, device=like.device)
            self._buffers[name, dtype] = buffer
        return buffer[:size].view(shape)
