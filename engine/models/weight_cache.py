"""The values of quantised GGUF files, kept on disk: the next start reads what this one works out.

A file's name is a digest of all that its values follow from: the checkpoint, the dtype, and the
code that dequantises. So none is ever out of date, and each may be deleted at any time. Tensors
lie one after another, then comes an index of them in JSON, its length, and a magic.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, NamedTuple

import structlog
import torch
from torch import Tensor

from cadenza.checkpoints import CheckpointError, ggml_types
from cadenza.engine.models.weights import GgufWeights, Weights, WeightSource

_MAGIC = b"cadenza weights\n"
_ALIGNMENT = 64  # bytes, of a cache line
_LENGTH = 8  # bytes of the index's length
_BEHIND = 64 << 20  # bytes before a tensor that may be of the same layer
_SUFFIX, _UNFINISHED = ".weights", ".unfinished"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_UNKEPT = "weights are not kept for the next start"

_log = structlog.get_logger(__name__)


def cache_folder() -> Path:
    """Where they lie: `cadenza/weights` in `$XDG_CACHE_HOME`, or in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cadenza" / "weights"


@contextmanager
def kept(source: WeightSource, dtype: torch.dtype, most_bytes: int) -> Iterator[Weights]:
    """Give the source's weights, matrices in `dtype`, and keep what was dequantised for later.

    most_bytes: of all files in the folder; the least recently used make room. Nothing is kept of a
    caller that fails. What hinders the keeping is logged, and hinders nobody else.
    """
    num_bytes = source.num_values * dtype.itemsize
    if not isinstance(source, GgufWeights) or not source.is_quantised or num_bytes > most_bytes:
        yield source
        return
    try:
        folder = cache_folder()
    except RuntimeError as error:  # a user without a home
        _log.warning(_UNKEPT, reason=str(error))
        yield source
        return
    path = folder / f"{_digest(source, dtype)}{_SUFFIX}"
    index = _read_index(path)
    if index is not None:
        try:
            yield _Kept(source, index)
        finally:
            # what was packed is read no more, and shall not look like memory that is in use
            index.values.madvise(mmap.MADV_DONTNEED)
        return
    writer = _Writer(path)
    try:
        writer.open(num_bytes, most_bytes)
        yield _Keeping(source, dtype, writer)
        writer.finish()
    finally:
        writer.close()


class _Place(NamedTuple):
    """Where a tensor lies in a file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int  # bytes

    @property
    def end(self) -> int:
        return self.offset + math.prod(self.shape) * _DTYPES[self.dtype].itemsize


class _Index(NamedTuple):
    values: mmap.mmap
    places: dict[str, _Place]


class _Kept:
    """Weights from a file."""

    def __init__(self, source: GgufWeights, index: _Index) -> None:
        self.where = source.where
        self.norms_are_offset = source.norms_are_offset
        self._index = index

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        place = self._index.places.get(name)
        # who wrote it had asked for the same weights, of the same checkpoint
        if place is None or place.shape != shape:
            raise CheckpointError(f"{self.where}: its kept weights have no {name!r} of {shape}.")
        self._let_go_before(place.offset - _BEHIND)
        dtype, count = _DTYPES[place.dtype], math.prod(shape)
        return torch.frombuffer(
            self._index.values, dtype=dtype, count=count, offset=place.offset
        ).view(shape)

    def unread(self) -> list[str]:
        return []

    def _let_go_before(self, offset: int) -> None:
        """Have no pages in memory of what is packed by now; if it is not, they are read again."""
        length = offset // mmap.PAGESIZE * mmap.PAGESIZE
        if length > 0:
            self._index.values.madvise(mmap.MADV_DONTNEED, 0, length)


class _Keeping:
    """A source whose weights are written down as they are asked for."""

    def __init__(self, source: GgufWeights, dtype: torch.dtype, writer: _Writer) -> None:
        self.where = source.where
        self.norms_are_offset = source.norms_are_offset
        self.unread = source.unread
        self._source = source
        self._dtype = dtype
        self._writer = writer

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        weight = self._source.get(name, shape)
        if weight.ndim > 1:  # norms stay as they are: what is added to them is added in fp32
            weight = weight.to(self._dtype)
        self._writer.add(name, weight)
        return weight


class _Writer:
    """A file that others see once it is whole. After a failure it does nothing more."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = path
        self._file: BinaryIO | None = None
        self._places: dict[str, _Place] = {}

    def open(self, num_bytes: int, most_bytes: int) -> None:
        with self._told():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _make_room(self._path.parent, num_bytes, most_bytes)
            # not by process id: those of two containers over one folder may be the same
            number, name = tempfile.mkstemp(_UNFINISHED, f"{self._path.stem}.", self._path.parent)
            self._unfinished, self._file = Path(name), os.fdopen(number, "wb")

    def add(self, name: str, weight: Tensor) -> None:
        if self._file is None:
            return
        with self._told():
            self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
            dtype = str(weight.dtype).removeprefix("torch.")
            self._places[name] = _Place(dtype, tuple(weight.shape), self._file.tell())
            self._file.write(weight.contiguous().view(torch.uint8).flatten().numpy().data)

    def finish(self) -> None:
        if self._file is None:
            return
        with self._told():
            index = json.dumps(self._places).encode()
            self._file.write(index + len(index).to_bytes(_LENGTH, "little") + _MAGIC)
            self._file.close()
            self._unfinished.replace(self._path)
            self._file = None

    def close(self) -> None:
        """Leave nothing that is unfinished."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                self._unfinished.unlink()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            _log.warning(_UNKEPT, reason=str(error))
            self.close()


def _read_index(path: Path) -> _Index | None:
    """Return what a file holds; None where there is none, or none that is whole."""
    try:
        with path.open("rb") as file:
            # a private copy of each page that is written to, and nobody does
            values = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError):
        return None
    with suppress(OSError):  # it may be another user's, or on a system that is read only
        os.utime(path)  # used last
    end = len(values) - len(_MAGIC)
    begin = end - _LENGTH
    if begin < 0 or values[end:] != _MAGIC:
        return None
    length = int.from_bytes(values[begin:end], "little")
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        told = json.loads(values[max(0, begin - length) : begin])
        places = {name: _Place(kind, tuple(shape), at) for name, (kind, shape, at) in told.items()}
        if all(0 <= place.offset <= place.end <= begin for place in places.values()):
            return _Index(values, places)
    return None


def _digest(source: GgufWeights, dtype: torch.dtype) -> str:
    """Of everything that the values follow from."""
    digest = hashlib.sha256(f"{dtype} gguf {version('gguf')}".encode())
    folders = (Path(__file__).parent, Path(ggml_types.__file__).parent)
    code = [file for folder in folders for file in folder.glob("*.py")]
    for file in sorted(code):
        digest.update(file.read_bytes())
    digest.update(source.stored.data)
    return digest.hexdigest()


def _make_room(folder: Path, num_bytes: int, most_bytes: int) -> None:
    """Delete the least recently used files until another one fits. Raises OSError if none does."""
    files = sorted(
        (status.st_mtime, status.st_size, path)
        for path in folder.iterdir()
        if path.suffix in (_SUFFIX, _UNFINISHED) and (status := path.stat())
    )
    left = most_bytes - num_bytes - sum(size for _, size, _ in files)
    deleted, num_deleted = [], 0
    for _, size, path in files:
        if left + num_deleted >= 0:
            break
        deleted.append(path)
        num_deleted += size
    if shutil.disk_usage(folder).free + num_deleted < 2 * num_bytes:
        raise OSError(f"{folder} has less free than twice the {num_bytes:,} bytes of these weights")
    for path in deleted:
        path.unlink(missing_ok=True)
