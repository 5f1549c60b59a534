"""Matrix products whose every output row is independent of the other rows.

A library's product of M rows is free to choose its blocking by M, and with it the order of
additions; then a token's logits depend on what it was batched with. `pack` prepares a weight once
for the backend of its device; `linear` multiplies by it, row-invariantly on the CPU.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from cadenza.kernels.linear import native, onednn
from cadenza.kernels.linear.reference import linear_reference
from cadenza.kernels.triton_backend import uses_triton

__all__ = ["Weight", "backend", "linear", "linear_reference", "pack"]


class Weight(Protocol):
    """A weight that was prepared for one backend."""

    @property
    def out_features(self) -> int: ...

    def multiply(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor: ...


class _TiledWeight:
    """The reference on any device: one product a tile."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    @property
    def out_features(self) -> int:
        return self._weight.shape[0]

    def multiply(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return linear_reference(x, self._weight).to(dtype or x.dtype)


class _LibraryWeight(_TiledWeight):
    """One library call, not row-invariant: what is used beside Triton."""

    def multiply(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return torch.nn.functional.linear(x, self._weight).to(dtype or x.dtype)


def backend(dtype: torch.dtype) -> str:
    """Name what multiplies weights of `dtype` on this machine's CPU."""
    if native.is_supported(dtype):
        return f"native {native.fastest(dtype)}"
    return "onednn" if onednn.is_supported(dtype) else "torch"


def pack(weight: Tensor) -> Weight:
    """Prepare a weight [out_features, in_features]; the result may share its memory."""
    if weight.ndim != 2:
        raise ValueError(f"a weight has 2 dimensions, not {weight.ndim}")
    if uses_triton(weight.device):
        return _LibraryWeight(weight)
    if native.is_supported(weight.dtype):
        return native.PackedWeight(weight)
    if onednn.is_supported(weight.dtype):
        return onednn.PackedWeight(weight)
    return _TiledWeight(weight)


def linear(x: Tensor, weight: Weight, dtype: torch.dtype | None = None) -> Tensor:
    """Return x @ weight.T: [rows, in_features] -> [rows, out_features].

    dtype: of the result, that of x or fp32; that of x by default. fp32 is not rounded before, where
    the backend can do so.
    """
    return weight.multiply(x, dtype)
