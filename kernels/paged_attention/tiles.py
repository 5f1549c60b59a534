"""The fixed shapes of attention's products, and the check that they are bit-equal.

A product's additions are ordered by the library's blocking, which follows the shape; so the
number of query rows of a product must not matter, or must not vary. Multiples of 4 rows were
bit-equal wherever tried (MKL, fp32, 1 to 8 threads, 1 to 130 tiles), 1 to 3 rows were not.
`piece_lengths` compares them on this machine with products on one thread, and falls back to one
length for all pieces if they differ.
"""

from __future__ import annotations

from functools import cache

import torch

from cadenza.kernels.threads import one_thread

KEY_TILE = 64  # keys a tile
_LENGTHS = (1, 4, 16, 64)  # positions a piece; 1 is a decoding row
_FIXED = (4,)
_ROW_MULTIPLE = 4
_CHECK_TILES = 5


def padded_rows(length: int, group: int) -> int:
    """Return the query rows of a piece: `length` positions of `group` heads, padded."""
    return -(-length * group // _ROW_MULTIPLE) * _ROW_MULTIPLE


@cache
def piece_lengths(group: int, head_dim: int) -> tuple[int, ...]:
    """Return the lengths, ascending, whose products are bit-equal on this machine."""
    generator = torch.Generator().manual_seed(0)
    most = padded_rows(_LENGTHS[-1], group)
    for inner, columns in ((head_dim, KEY_TILE), (KEY_TILE, head_dim)):
        left = torch.randn(_CHECK_TILES, most, inner, generator=generator)
        # strided as keys are in a product by their transpose
        right = torch.randn(_CHECK_TILES, columns, inner, generator=generator).transpose(1, 2)
        if inner == KEY_TILE:
            right = right.contiguous()
        with one_thread():
            whole = torch.bmm(left, right)
        for length in _LENGTHS:
            rows = padded_rows(length, group)
            for tiles in (1, 2, _CHECK_TILES):
                for start in range(0, most - rows + 1, rows):
                    part = torch.bmm(left[:tiles, start : start + rows], right[:tiles])
                    if not torch.equal(part, whole[:tiles, start : start + rows]):
                        return _FIXED
    return _LENGTHS
