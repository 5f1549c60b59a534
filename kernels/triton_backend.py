"""Where Triton's kernels compute: on CUDA, and on the CPU where Triton is told to interpret them.

`TRITON_INTERPRET=1` in the environment of a process makes its kernels run in NumPy, which is slow
and needs no GPU: all that Triton computes on CUDA is then computed by the same kernels here.
"""

from __future__ import annotations

import os

import torch

# as Triton reads it, which decides when a kernel is defined; importing Triton takes a while
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")


def uses_triton(device: torch.device) -> bool:
    """Tell whether operations on `device` are Triton's."""
    return device.type == "cuda" or INTERPRETED
