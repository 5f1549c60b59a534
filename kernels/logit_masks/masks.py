"""The masks of a step's rows, as Triton's kernels read them: lists end to end, and packed bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

FORBIDDEN = float("-inf")

Array = npt.NDArray[Any]


class RowMask(NamedTuple):
    """Of one row, on the host. First biases are added; then tokens are forbidden."""

    bias_ids: Array  # int32; a token may come again
    biases: Array  # fp32, finite, as many
    allowed: Array | None  # [ceil(vocab_size / 32)] int32, as `packed`; None: all are
    forbidden: Sequence[int]  # token ids


class Masks(NamedTuple):
    """On the device."""

    places: Tensor  # [biases] int64, row * vocab_size + token, ascending
    biases: Tensor  # [biases] fp32, -inf where forbidden; of one place in the order of addition
    rows: Tensor  # [masked] int32, those that have `allowed`
    allowed: Tensor  # [masked, ceil(vocab_size / 32)] int32
    most_biases: int  # of one place


class HostMasks(NamedTuple):
    """Before the device knows of them."""

    arrays: tuple[Array, ...]  # as the tensors of `Masks`
    most_biases: int

    def on_device(self, tensors: Sequence[Tensor]) -> Masks:
        """Return them, given the arrays on the device."""
        places, biases, rows, allowed = tensors
        return Masks(places, biases, rows, allowed, self.most_biases)


def packed(ids: Array, vocab_size: int) -> Array:
    """Return a bit a token, set where it is in `ids`: [ceil(vocab_size / 32)] int32.

    Token t is bit t % 32 of word t // 32, as in the bit masks of xgrammar and vLLM.
    """
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.bool_)
    bits[ids] = True
    return np.packbits(bits, bitorder="little").view("<i4")


def masks_of(masks: Mapping[int, RowMask], vocab_size: int) -> HostMasks:
    """Return the masks of a step, row -> its own."""
    places, biases = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.float32)]
    for row, mask in masks.items():
        ids = np.concatenate((mask.bias_ids, np.array(mask.forbidden, dtype=np.int32)))
        places.append(row * vocab_size + ids.astype(np.int64))
        biases += mask.biases, np.full(len(mask.forbidden), FORBIDDEN, dtype=np.float32)
    flat = np.concatenate(places)
    order = np.argsort(flat, kind="stable")
    flat = flat[order]
    allowed = {row: mask.allowed for row, mask in masks.items() if mask.allowed is not None}
    words = np.empty((len(allowed), -(-vocab_size // 32)), dtype=np.int32)
    for place, row_words in enumerate(allowed.values()):
        words[place] = row_words
    return HostMasks(
        (flat, np.concatenate(biases)[order], np.array(list(allowed), dtype=np.int32), words),
        int(np.unique(flat, return_counts=True)[1].max(initial=0)),
    )
