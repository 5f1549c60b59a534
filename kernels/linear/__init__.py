"""Matrix products whose every output row is independent of the other rows.

A library's product of M rows is free to choose its blocking by M, and with it the order of
additions; then a token's logits depend on what it was batched with. `pack` prepares a weight once
for the backend of its device; `linear` multiplies by it, row-invariantly on the CPU, and on a GPU
where that is asked for.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from cadenza.kernels.linear import native, onednn
from cadenza.kernels.linear.reference import linear_reference
from cadenza.kernels.quantised_linear import quantise, quantised_linear
from cadenza.kernels.triton_backend import uses_triton

__all__ = ["Weight", "backend", "linear", "linear_reference", "pack", "pack_coded"]


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


class _TritonWeight(_TiledWeight):
    """Row-invariant products in Triton."""

    def multiply(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        from cadenza.kernels.linear.triton import linear_triton

        return linear_triton(x, self._weight, dtype or x.dtype)


class _CodedWeight:
    """Codes of eight bits and scales in Triton."""

    def __init__(self, weight: Tensor, code: torch.dtype, *, invariant: bool) -> None:
        self._weight = quantise(weight, code)
        self._invariant = invariant

    @property
    def out_features(self) -> int:
        return len(self._weight.scales)

    def multiply(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return quantised_linear(x, self._weight, dtype, invariant=self._invariant)


class _LibraryWeight(_TiledWeight):
    """One library call, not row-invariant: what is used beside Triton if nobody asks for that."""

    def multiply(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return torch.nn.functional.linear(x, self._weight).to(dtype or x.dtype)


def backend(dtype: torch.dtype) -> str:
    """Name what multiplies weights of `dtype` on this machine's CPU."""
    if native.is_supported(dtype):
        return f"native {native.fastest(dtype)}"
    return "onednn" if onednn.is_supported(dtype) else "torch"


def pack(weight: Tensor, *, invariant: bool = False) -> Weight:
    """Prepare a weight [out_features, in_features]; the result may share its memory.

    invariant: whether rows shall not depend on each other beside Triton either.
    """
    if weight.ndim != 2:
        raise ValueError(f"a weight has 2 dimensions, not {weight.ndim}")
    if uses_triton(weight.device):
        return _TritonWeight(weight) if invariant else _LibraryWeight(weight)
    if native.is_supported(weight.dtype):
        return native.PackedWeight(weight)
    if onednn.is_supported(weight.dtype):
        return onednn.PackedWeight(weight)
    return _TiledWeight(weight)


def pack_coded(weight: Tensor, code: torch.dtype, *, invariant: bool = False) -> Weight:
    """Round a weight as `quantise` does, for devices on which Triton computes.

    code: int8 or float8_e4m3fn; the rest as `pack`. Raises ValueError as `quantise`.
    """
    return _CodedWeight(weight, code, invariant=invariant)


def linear(x: Tensor, weight: Weight, dtype: torch.dtype | None = None) -> Tensor:
    """Return x @ weight.T: [rows, in_features] -> [rows, out_features].

    dtype: of the result, that of x or fp32; that of x by default. fp32 is not rounded before, where
    the backend can do so.
    """
    return weight.multiply(x, dtype)
