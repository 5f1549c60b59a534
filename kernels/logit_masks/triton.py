"""Masks in Triton: what is added first, then what bits forbid, each for all rows of a step."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from cadenza.kernels.logit_masks.masks import Masks

_BIASES = 128  # that a program looks at
_PIECE = 1024  # tokens a program looks at


@triton.jit(do_not_specialize=["num_biases", "most_biases"])  # type: ignore[untyped-decorator]
def _bias_kernel(  # type: ignore[no-untyped-def]
    logits_ptr, places_ptr, biases_ptr, num_biases, most_biases, BIASES: tl.constexpr
):
    """The first bias of a place adds all of that place, so that nobody else writes there."""
    index = tl.program_id(0) * BIASES + tl.arange(0, BIASES)
    mask = index < num_biases
    place = tl.load(places_ptr + index, mask=mask, other=-1)
    before = tl.load(places_ptr + index - 1, mask=mask & (index > 0), other=-1)
    is_first = mask & (place != before)
    x = tl.load(logits_ptr + place, mask=is_first, other=0.0)
    for later in range(most_biases):
        is_there = is_first & (index + later < num_biases)
        same = is_there & (tl.load(places_ptr + index + later, mask=is_there, other=-1) == place)
        bias = tl.load(biases_ptr + index + later, mask=same, other=0.0)
        # whatever it was: NaN and -inf would be NaN
        x = tl.where(same, tl.where(bias == float("-inf"), bias, x + bias), x)
    tl.store(logits_ptr + place, x, mask=is_first)


@triton.jit  # type: ignore[untyped-decorator]
def _allow_kernel(  # type: ignore[no-untyped-def]
    logits_ptr, rows_ptr, allowed_ptr, size, words, PIECE: tl.constexpr
):
    masked = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + masked).to(tl.int64)
    token = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    mask = token < size
    word = tl.load(allowed_ptr + masked * words + token // 32, mask=mask, other=-1)
    is_refused = mask & (((word >> (token % 32)) & 1) == 0)
    refused = tl.full([PIECE], float("-inf"), tl.float32)
    tl.store(logits_ptr + row * size + token, refused, mask=is_refused)


def apply_masks_triton(logits: Tensor, masks: Masks) -> None:
    """Write the masks into logits [rows, vocab_size] fp32, as `apply_masks`."""
    if logits.dtype != torch.float32 or not logits.is_contiguous() or logits.ndim != 2:
        raise ValueError(f"logits are {logits.dtype} with strides {logits.stride()}")
    size = logits.shape[1]
    words = triton.cdiv(size, 32)
    num_biases, num_masked = len(masks.places), len(masks.rows)
    if len(masks.biases) != num_biases or masks.allowed.shape != (num_masked, words):
        shapes = [tuple(tensor.shape) for tensor in masks[:4]]
        raise ValueError(f"masks of shapes {shapes} do not fit {size} tokens")
    if num_biases:
        _bias_kernel[(triton.cdiv(num_biases, _BIASES),)](
            logits, masks.places, masks.biases, num_biases, masks.most_biases, BIASES=_BIASES
        )
    if num_masked:
        _allow_kernel[(num_masked, triton.cdiv(size, _PIECE))](
            logits, masks.rows, masks.allowed, size, words, PIECE=_PIECE
        )
