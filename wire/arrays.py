"""NumPy arrays as the bytes of a message, and back without a copy."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

assert sys.byteorder == "little", "frames have numbers as they are in memory"

Ids = npt.NDArray[np.int32]


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids as little-endian int32 bytes.

    Raises:
        OverflowError: an id does not fit 32 bits.
    """
    if not isinstance(ids, np.ndarray) and not (ids := [*ids]):
        return b""  # as most lists of a request are
    array = ids if isinstance(ids, np.ndarray) else np.array(ids, dtype=np.int64)
    packed = array.astype("<i4")
    if not np.array_equal(packed, array):
        raise OverflowError("a token id does not fit 32 bits")
    return packed.tobytes()


def view_ids(data: bytes) -> Ids:
    """A read-only int32 view of `pack_ids`' bytes."""
    return np.frombuffer(data, dtype="<i4")


def read_ids(data: bytes) -> list[int]:
    """`pack_ids`' bytes as numbers.

    Raises:
        ValueError: these are no such bytes.
    """
    return array("i", data).tolist()


def read_requests(data: bytes) -> list[int]:
    """The same for request ids."""
    return array("q", data).tolist()


def view_floats(data: bytes) -> npt.NDArray[np.float32]:
    """A read-only float32 view, for log-probabilities."""
    return np.frombuffer(data, dtype="<f4")
