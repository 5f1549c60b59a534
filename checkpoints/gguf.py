"""A small, fast reader of GGUF files: metadata, tensor table, and tensor bytes by memory map.

It checks everything that it follows (magic, version, counts, lengths, offsets), so that a
truncated or corrupt file ends in a `CheckpointError`, never in an IndexError or a huge
allocation. Dequantising is not its business.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cadenza.checkpoints.errors import CheckpointError
from cadenza.checkpoints.ggml_types import GGML_TYPES

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # version 1 had 32-bit counts and was never common
_MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
_MAX_ARRAY_DEPTH = 4
_MIN_PAIR_BYTES = 8 + 4 + 1  # an empty key, a type, a one-byte value
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8  # an empty name, no dimensions, a type, an offset

_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Where one tensor lies, and what it is."""

    name: str
    shape: tuple[int, ...]  # row-major: the last dimension is the contiguous one
    ggml_type: int  # a key of GGML_TYPES
    offset: int  # bytes from the start of the file
    num_bytes: int


class GgufFile:
    """An open GGUF file. The memory map stays valid as long as an array of it lives."""

    def __init__(
        self,
        path: Path,
        mapped: npt.NDArray[np.uint8],
        metadata: dict[str, Any],
        tensors: dict[str, TensorInfo],
    ) -> None:
        self.path = path
        self.metadata = metadata  # arrays of strings are lists, arrays of numbers NumPy arrays
        self.tensors = tensors
        self._mapped = mapped

    @property
    def stored(self) -> npt.NDArray[np.uint8]:
        """All bytes of the file, read-only and not copied."""
        return self._mapped

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the stored bytes of one tensor, [num_bytes], read-only and not copied.

        Raises CheckpointError when the file has no such tensor.
        """
        info = self.tensors.get(name)
        if info is None:
            raise CheckpointError(f"{self.path}: the tensor {name!r} is missing.")
        return self._mapped[info.offset : info.offset + info.num_bytes]


def read_gguf(path: str | Path) -> GgufFile:
    """Read the header, all metadata and the tensor table of a GGUF file.

    Raises CheckpointError when the file cannot be read or is not well formed.
    """
    path = Path(path)
    mapped = _map(path)
    cursor = _Cursor(path, mapped)
    num_tensors, num_pairs = _read_header(cursor)
    metadata = _read_metadata(cursor, num_pairs)
    tensors = _read_tensor_table(cursor, num_tensors, _alignment(path, metadata))
    return GgufFile(path, mapped, metadata, tensors)


class _Cursor:
    """A position in the mapped file; every read is checked against the file's end."""

    def __init__(self, path: Path, mapped: npt.NDArray[np.uint8]) -> None:
        self.path = path
        self.buffer = mapped.data
        self.size = len(mapped)
        self.offset = 0

    def error(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {what} (at byte {self.offset}).")

    def advance(self, num_bytes: int) -> int:
        """Step over `num_bytes` bytes and return where they start."""
        start = self.offset
        if num_bytes > self.size - start:
            raise self.error("the file ends too early; it is truncated or corrupt")
        self.offset = start + num_bytes
        return start

    def scalar(self, kind: int) -> Any:
        layout = _SCALARS[kind]
        return layout.unpack_from(self.buffer, self.advance(layout.size))[0]

    def uint32(self) -> int:
        value: int = self.scalar(4)
        return value

    def uint64(self) -> int:
        value: int = self.scalar(10)
        return value

    def string(self) -> str:
        length = self.uint64()
        start = self.advance(length)
        try:
            return str(self.buffer[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            raise self.error("a string is not valid UTF-8") from error

    def strings(self, count: int) -> list[str]:
        """Read `count` strings; one tight loop, as vocabularies have 10^5 of them."""
        buffer, size, offset = self.buffer, self.size, self.offset
        length_at = _SCALARS[10].unpack_from
        found = []
        try:
            for _ in range(count):
                start = offset + 8
                offset = start + length_at(buffer, offset)[0]
                if offset > size:
                    raise self.error("a string reaches past the end of the file")
                found.append(str(buffer[start:offset], "utf-8"))
        except struct.error as error:
            raise self.error("the file ends inside an array of strings") from error
        except UnicodeDecodeError as error:
            raise self.error("a string of an array is not valid UTF-8") from error
        self.offset = offset
        return found

    def array(self, depth: int) -> Any:
        kind, count = self.uint32(), self.uint64()
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind].format)
            start = self.advance(count * dtype.itemsize)
            raw = self.buffer[start : self.offset]
            if kind == 7:
                return np.frombuffer(raw, dtype=np.uint8) != 0
            return np.frombuffer(raw, dtype=dtype).copy()
        if count > self.size:
            raise self.error(f"an array claims {count} elements, more than the file has bytes")
        if kind == _STRING:
            return self.strings(count)
        if kind == _ARRAY and depth < _MAX_ARRAY_DEPTH:
            return [self.array(depth + 1) for _ in range(count)]
        raise self.error(f"an array has elements of the unknown type {kind}")

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(kind)
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(1)
        raise self.error(f"a metadata value has the unknown type {kind}")


def _map(path: Path) -> npt.NDArray[np.uint8]:
    try:
        if path.stat().st_size == 0:
            raise CheckpointError(f"{path}: the file is empty.")
        return np.memmap(path, dtype=np.uint8, mode="r")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}.") from error


def _read_header(cursor: _Cursor) -> tuple[int, int]:
    """Return the numbers of tensors and of metadata pairs."""
    magic = bytes(cursor.buffer[:4])
    if magic != _MAGIC:
        raise CheckpointError(f"{cursor.path}: not a GGUF file (it starts with {magic!r}).")
    cursor.advance(4)
    version = cursor.uint32()
    if version not in _VERSIONS:
        raise CheckpointError(
            f"{cursor.path}: GGUF version {version} is not supported, only 2 and 3 are."
        )
    num_tensors, num_pairs = cursor.uint64(), cursor.uint64()
    for count, least, noun in (
        (num_tensors, _MIN_TENSOR_BYTES, "tensors"),
        (num_pairs, _MIN_PAIR_BYTES, "metadata pairs"),
    ):
        if count * least > cursor.size:
            raise cursor.error(f"the header claims {count} {noun}, more than the file can hold")
    return num_tensors, num_pairs


def _read_metadata(cursor: _Cursor, num_pairs: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(num_pairs):
        key = cursor.string()
        if key in metadata:
            raise cursor.error(f"the metadata key {key!r} appears twice")
        metadata[key] = cursor.value(cursor.uint32())
    return metadata


def _alignment(path: Path, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
        raise CheckpointError(
            f"{path}: general.alignment is {alignment!r}, not a positive multiple of 8."
        )
    return alignment


def _read_tensor_table(cursor: _Cursor, num_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    relative: dict[str, TensorInfo] = {}
    for _ in range(num_tensors):
        info = _read_tensor_info(cursor)
        if info.name in relative:
            raise cursor.error(f"the tensor {info.name!r} appears twice")
        relative[info.name] = info
    data_start = -(-cursor.offset // alignment) * alignment
    return {name: _placed(cursor, info, data_start, alignment) for name, info in relative.items()}


def _read_tensor_info(cursor: _Cursor) -> TensorInfo:
    """Read one entry; its offset is still relative to the start of the data."""
    name = cursor.string()
    num_dimensions = cursor.uint32()
    if num_dimensions > _MAX_DIMENSIONS:
        raise cursor.error(f"the tensor {name!r} claims {num_dimensions} dimensions")
    # ggml counts dimensions from the contiguous one outwards
    shape = tuple(reversed([cursor.uint64() for _ in range(num_dimensions)]))
    kind, offset = cursor.uint32(), cursor.uint64()
    layout = GGML_TYPES.get(kind)
    if layout is None:
        raise cursor.error(f"the tensor {name!r} has the unknown type {kind}")
    if (shape[-1] if shape else 1) % layout.block_elements:
        raise cursor.error(
            f"the tensor {name!r} of type {layout.name} has rows of {shape[-1]} elements,"
            f" not a multiple of {layout.block_elements}"
        )
    num_bytes = math.prod(shape) // layout.block_elements * layout.block_bytes
    return TensorInfo(name=name, shape=shape, ggml_type=kind, offset=offset, num_bytes=num_bytes)


def _placed(cursor: _Cursor, info: TensorInfo, data_start: int, alignment: int) -> TensorInfo:
    if info.offset % alignment:
        raise CheckpointError(
            f"{cursor.path}: the tensor {info.name!r} is not aligned to {alignment} bytes."
        )
    offset = data_start + info.offset
    if offset + info.num_bytes > cursor.size:
        raise CheckpointError(
            f"{cursor.path}: the tensor {info.name!r} reaches past the end of the file;"
            " the file is truncated or corrupt."
        )
    return TensorInfo(
        name=info.name,
        shape=info.shape,
        ggml_type=info.ggml_type,
        offset=offset,
        num_bytes=info.num_bytes,
    )
