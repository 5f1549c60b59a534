"""Row-invariant products on the CPU by our own C++ kernels, over weights that were packed once.

Each output is one fp32 sum over the inputs in ascending order, whatever the number of rows and
threads, so that a row is bitwise the same in any batch. Levels of instruction sets differ from
each other: fused multiply-adds do not round the product, AMX adds the even and the odd inputs of
32 apart, and with both AMX and AVX-512 BF16 the machine takes bf16 denormals for zeros. fp32 sums
of bf16 products are rounded to bf16 once, at the end, or not at all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cadenza.kernels.large_pages import LargePages
from cadenza.kernels.native import BFLOAT16, COMPACT_BFLOAT16, FLOAT32, library

_PAGES = LargePages()
DTYPES = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}
# What levels are for; all else is multiplied as by the level below
_ONLY = {
    "avx512-vnni": (torch.int8,),
    "avx512-bf16": (torch.bfloat16,),
    "amx": (torch.bfloat16, torch.int8),
}


def levels(dtype: torch.dtype | None = None) -> tuple[str, ...]:
    """Name the instruction sets that there are kernels for, the fastest last; none: no library.

    dtype: fp32, bf16 or int8; those alone that multiply it in another way than the one below.
    """
    found = library()
    names = () if found is None else found.levels
    return tuple(name for name in names if dtype is None or dtype in _ONLY.get(name, (dtype,)))


def is_supported(dtype: torch.dtype) -> bool:
    """Tell whether there are kernels for `dtype`."""
    return dtype in DTYPES and library() is not None


def fastest(dtype: torch.dtype) -> str:
    """Name the fastest level that differs for `dtype` from the one below."""
    return levels(dtype)[-1]


class PackedWeight:
    """A weight in panels of 32 outputs; it keeps nothing of the tensor that it was made of.

    Of bf16 in 12 bits a value, where the level multiplies that and the values allow it.
    """

    def __init__(self, weight: Tensor, level: str | None = None) -> None:
        """weight: [out_features, in_features], fp32 or bf16; level: one of `levels()`.

        Raises ValueError for another weight, or a level that this machine does not have,
        RuntimeError where there is no library, and MemoryError.
        """
        found = library()
        if found is None:
            raise RuntimeError("the C++ kernels were not compiled, or cannot be loaded")
        if weight.ndim != 2 or weight.device.type != "cpu" or weight.dtype not in DTYPES:
            raise ValueError(f"{_described(weight)} is not a fp32 or bf16 matrix on the CPU")
        if not weight.shape[1]:
            raise ValueError(f"{_described(weight)} has no inputs")
        if level is not None and level not in found.levels:
            raise ValueError(f"level is {level!r}, not one of {', '.join(found.levels)}")
        self._library = found
        self._level = found.levels.index(level) if level else len(found.levels) - 1
        self._dtype = weight.dtype
        self._shape = (weight.shape[0], weight.shape[1])
        self._format, self._packed = self._pack(weight.contiguous())

    @property
    def out_features(self) -> int:
        return self._shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Of the weight that it was made of, and of what it multiplies."""
        return self._dtype

    @property
    def format(self) -> int:
        """What the panels are made of, a dtype of level.h."""
        return self._format

    @property
    def level(self) -> int:
        """The number of the instruction set that it is multiplied with."""
        return self._level

    @property
    def address(self) -> int:
        """Where the panels lie."""
        return self._packed.data_ptr()

    def multiply(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return x @ weight.T in `dtype`: that of both by default, or the other of the two.

        Raises ValueError for an x that is not [rows, in_features] on the CPU in that dtype.
        """
        out_features, in_features = self._shape
        if x.ndim != 2 or x.shape[1] != in_features or x.dtype != self._dtype or not x.is_cpu:
            raise ValueError(
                f"x is {_described(x)}; the weight takes [rows, {in_features}] of"
                f" {_named(self._dtype)} on the CPU"
            )
        x = x.contiguous()
        y = torch.empty(len(x), out_features, dtype=dtype or self._dtype)
        self._library.linear(
            self._level,
            DTYPES[x.dtype],
            self._format,
            torch.get_num_threads(),
            x.data_ptr(),
            len(x),
            in_features,
            self._packed.data_ptr(),
            out_features,
            DTYPES[y.dtype],
            y.data_ptr(),
        )
        return y

    @property
    def _formats(self) -> tuple[int, ...]:
        """What it may be packed as, the best first."""
        plain = DTYPES[self._dtype]
        if plain == BFLOAT16 and self._library.takes(self._level, COMPACT_BFLOAT16):
            return COMPACT_BFLOAT16, plain
        return (plain,)

    def _pack(self, weight: Tensor) -> tuple[int, Tensor]:
        """Return the format and the panels. Raises ValueError where it cannot be quantised."""
        place = (torch.get_num_threads(), weight.data_ptr(), *self._shape)
        chosen = next(each for each in self._formats if self._library.fits(*place, each))
        packed = _PAGES.take(self._library.packed_bytes(*self._shape, chosen))
        if not self._library.pack(*place, DTYPES[weight.dtype], chosen, packed.data_ptr()):
            raise ValueError("a weight that is not finite cannot be quantised")
        return chosen, packed


def _described(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} of {_named(tensor.dtype)} on {tensor.device}"


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
