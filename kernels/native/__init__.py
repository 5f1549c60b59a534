"""The C++ kernels: a library with plain C functions that is called through ctypes.

It is compiled when the package is installed, and left out where there is no compiler; `library`
then returns None, and the operations use what they have in Python.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

__all__ = [
    "BFLOAT16",
    "COMPACT_BFLOAT16",
    "FLOAT32",
    "INT8",
    "Layer",
    "Library",
    "Model",
    "PackedMatrix",
    "Step",
    "Times",
    "library",
]

FLOAT32, BFLOAT16, INT8, COMPACT_BFLOAT16 = range(4)  # dtypes, as in level.h

_ADDRESS, _SIZE, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class PackedMatrix(ctypes.Structure):
    """`CadenzaWeight` of layers.cpp, where the next four are too."""

    _fields_ = (("panels", _ADDRESS), ("format", _NUMBER))


class Layer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", _ADDRESS),
        ("qkv", PackedMatrix),
        ("output", PackedMatrix),
        ("mlp_norm", _ADDRESS),
        ("gate_up", PackedMatrix),
        ("down", PackedMatrix),
        ("qkv_bias", _ADDRESS),
        ("query_norm", _ADDRESS),
        ("key_norm", _ADDRESS),
        ("window", _SIZE),
    )


class Model(ctypes.Structure):
    _fields_ = (
        ("level", _NUMBER),
        ("dtype", _NUMBER),
        ("inputs", _NUMBER),
        ("num_layers", _SIZE),
        ("layers", ctypes.POINTER(Layer)),
        ("hidden", _SIZE),
        ("heads", _SIZE),
        ("kv_heads", _SIZE),
        ("head_dim", _SIZE),
        ("inner", _SIZE),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("cos", _ADDRESS),
        ("sin", _ADDRESS),
    )


class Step(ctypes.Structure):
    _fields_ = (
        ("tokens", _SIZE),
        ("rows", _SIZE),
        ("positions", _ADDRESS),
        ("blocks", _ADDRESS),
        ("offsets", _ADDRESS),
        ("num_context", _ADDRESS),
        ("num_new", _ADDRESS),
        ("tables", _ADDRESS),
        ("table_width", _SIZE),
        ("cache", _ADDRESS),
        ("block_size", _SIZE),
        ("hidden", _ADDRESS),
    )


class Times(ctypes.Structure):
    _fields_ = (("products", _SIZE), ("attention", _SIZE), ("rest", _SIZE))


class Library:
    """The functions. An address is of contiguous memory that lives as long as the call.

    Those of an operation that is not a product are bound by whoever calls them, from `functions`.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError when the file cannot be loaded, AttributeError when functions miss."""
        functions = self.functions = ctypes.CDLL(str(path))
        self._level = functions.cadenza_level
        self._level.argtypes, self._level.restype = (_NUMBER,), ctypes.c_char_p
        self._packed_bytes = functions.cadenza_packed_bytes
        self._packed_bytes.argtypes, self._packed_bytes.restype = (_SIZE, _SIZE, _NUMBER), _SIZE
        self._fits = functions.cadenza_fits
        self._fits.argtypes = (_NUMBER, _ADDRESS, _SIZE, _SIZE, _NUMBER)
        self._fits.restype = _NUMBER
        self._pack = functions.cadenza_pack
        self._pack.argtypes = (_NUMBER, _ADDRESS, _SIZE, _SIZE, _NUMBER, _NUMBER, _ADDRESS)
        self._pack.restype = _NUMBER
        self._takes = functions.cadenza_takes
        self._takes.argtypes, self._takes.restype = (_NUMBER, _NUMBER), _NUMBER
        product = (_ADDRESS, _SIZE, _SIZE, _ADDRESS, _SIZE, _NUMBER, _ADDRESS)
        self._linear = functions.cadenza_linear
        self._linear.argtypes, self._linear.restype = (*(_NUMBER,) * 4, *product), _NUMBER
        self._layers = functions.cadenza_layers
        self._layers.argtypes = (
            *map(ctypes.POINTER, (Model, Step)),
            _NUMBER,
            ctypes.POINTER(Times),
        )
        self._layers.restype = _NUMBER
        self.levels = self._levels()

    def _levels(self) -> tuple[str, ...]:
        """Name the instruction sets that this machine has kernels for, the fastest last."""
        names: list[str] = []
        while name := self._level(len(names)):
            names.append(name.decode())
        return tuple(names)

    def takes(self, level: int, format: int) -> bool:
        """Tell whether a level multiplies weights of a format."""
        return bool(self._takes(level, format))

    def packed_bytes(self, out_features: int, in_features: int, format: int) -> int:
        size: int = self._packed_bytes(out_features, in_features, format)
        return size

    def fits(
        self, threads: int, weight: int, out_features: int, in_features: int, format: int
    ) -> bool:
        """Tell whether the weight [out_features, in_features] at an address can be packed so.

        Any can but for COMPACT_BFLOAT16, which takes bf16 whose values differ little in size.
        """
        return bool(self._fits(threads, weight, out_features, in_features, format))

    def pack(
        self,
        threads: int,
        weight: int,
        out_features: int,
        in_features: int,
        dtype: int,
        format: int,
        packed: int,
    ) -> bool:
        """Copy the weight [out_features, in_features] at an address to `packed_bytes` elsewhere.

        format: the dtype; INT8, to which it is quantised; or COMPACT_BFLOAT16, of bf16 that fits.
        False: it has values that are not finite, and cannot be quantised.
        """
        return not self._pack(threads, weight, out_features, in_features, dtype, format, packed)

    def linear(
        self,
        level: int,
        dtype: int,
        format: int,
        threads: int,
        x: int,
        rows: int,
        in_features: int,
        packed: int,
        out_features: int,
        y_dtype: int,
        y: int,
    ) -> None:
        """Write x, of `dtype`, times the transposed weight to y, [rows, out_features].

        Raises MemoryError.
        """
        shape = (x, rows, in_features, packed, out_features)
        if self._linear(level, dtype, format, threads, *shape, y_dtype, y):
            raise MemoryError(f"no memory to prepare {rows} rows of {in_features} inputs")

    def layers(self, model: Model, step: Step, threads: int, times: Times) -> None:
        """Compute all layers of a step; adds to the times. Raises MemoryError."""
        if self._layers(model, step, threads, times):
            raise MemoryError(f"no memory for what layers keep of {step.tokens} tokens")


@cache
def library() -> Library | None:
    """Return the library, or None where it was not compiled or cannot be loaded."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_kernels{suffix}")
        if path.exists():
            try:
                return Library(path)
            except (OSError, AttributeError):
                return None
    return None
