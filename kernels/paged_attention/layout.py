"""How a step's attention is cut into pieces of fixed shape, computed once for all layers.

A row's new tokens are cut into pieces of at most 64 positions, padded to one of a few lengths;
its context into tiles of 64 keys. Pieces of one length are stacked, so that all rows that decode
make one batch; rows are sorted by context, and a batch is closed when padding would double the
work or the batch would outgrow the cache of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cadenza.kernels.paged_attention.query_tiles import QueryTiles, plan_tiles
from cadenza.kernels.paged_attention.tiles import KEY_TILE, padded_rows, piece_lengths
from cadenza.kernels.paged_attention.workspace import Workspace
from cadenza.kernels.triton_backend import uses_triton

# Query-key pairs a batch may have for one KV head: chosen by sweep.
_BATCH_PAIRS = 1 << 13

IntArray = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceBatch:
    """Pieces of equal length, each with its keys padded to the same number of tiles."""

    num_pieces: int
    length: int  # positions a piece
    num_tiles: int  # of keys, a piece
    queries: Tensor  # [pieces * length] int64, index of the token; padding repeats a token
    blocks: Tensor  # [pieces * blocks of a piece] int64
    hidden: Tensor  # [pieces, tiles, query rows, KEY_TILE] bool, True: the key is not visible
    unwritten: Tensor  # [n] int64, places among [pieces * tiles * KEY_TILE] that hold no key
    results: Tensor | None  # [tokens] int64, which of [pieces * length] are real; None: all
    targets: Tensor  # [tokens] int64, the tokens of the real ones


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayout:
    """All that attention needs to know of a step."""

    batches: tuple[PieceBatch, ...]  # for the reference, or:
    tiles: tuple[QueryTiles, ...]  # for Triton
    window: int | None  # how many tokens one sees, itself among them; None: all before it
    softcap: float | None  # what bounds scores; None: nothing
    workspace: Workspace


class _Piece(NamedTuple):
    row: int
    token: int  # index of its first token
    num_real: int  # positions; the rest up to the length is padding
    position: int  # of its first token, in the row's sequence

    @property
    def num_keys(self) -> int:
        return self.position + self.num_real

    @property
    def num_tiles(self) -> int:
        return -(-self.num_keys // KEY_TILE)


def plan_attention(
    num_context: IntArray,
    num_new: IntArray,
    block_tables: IntArray,
    *,
    block_size: int,
    group: int,
    head_dim: int,
    device: torch.device,
    workspace: Workspace,
    kv_heads: int,
    window: int | None = None,
    softcap: float | None = None,
    tiles: tuple[QueryTiles, ...] = (),
) -> AttentionLayout:
    """Lay out one step. Rows lie one after another, `num_new[i]` tokens each.

    num_context, num_new: [rows]; block_tables: [rows, blocks]; group: query heads a KV head;
    window: how many tokens one sees, itself among them, None: all before it; softcap: what bounds
    scores, None: nothing; tiles: of this step, where Triton computes and somebody has planned them,
    for they depend on neither. One workspace may serve many steps, one after another.
    """
    if tiles or uses_triton(device):
        tiles = tiles or plan_tiles(
            num_context,
            num_new,
            block_tables,
            kv_heads=kv_heads,
            group=group,
            head_dim=head_dim,
            device=device,
        )
        return AttentionLayout(
            batches=(), tiles=tiles, window=window, softcap=softcap, workspace=workspace
        )
    first_tokens = np.cumsum(num_new) - num_new
    lengths = piece_lengths(group, head_dim)
    by_length: dict[int, list[_Piece]] = {length: [] for length in lengths}
    for row in range(len(num_new)):
        for piece in _cut(
            row, int(first_tokens[row]), int(num_context[row]), int(num_new[row]), lengths[-1]
        ):
            by_length[next(n for n in lengths if n >= piece.num_real)].append(piece)
    return AttentionLayout(
        batches=tuple(
            _lay_out(batch, length, block_tables, block_size, group, device, window)
            for length, pieces in by_length.items()
            for batch in _batches(pieces, length)
        ),
        tiles=(),
        window=window,
        softcap=softcap,
        workspace=workspace,
    )


def _cut(row: int, token: int, position: int, count: int, most: int) -> Iterator[_Piece]:
    for start in range(0, count, most):
        yield _Piece(row, token + start, min(most, count - start), position + start)


def _batches(pieces: list[_Piece], length: int) -> Iterator[list[_Piece]]:
    """Group pieces so that padding stays under twice the work, in bounded memory."""
    batch: list[_Piece] = []
    for piece in sorted(pieces, key=lambda piece: -piece.num_tiles):
        if batch:
            tiles = batch[0].num_tiles
            pairs = (len(batch) + 1) * tiles * length * KEY_TILE
            if pairs > _BATCH_PAIRS or 2 * piece.num_tiles < tiles:
                yield batch
                batch = []
        batch.append(piece)
    if batch:
        yield batch


def _lay_out(
    pieces: list[_Piece],
    length: int,
    block_tables: IntArray,
    block_size: int,
    group: int,
    device: torch.device,
    window: int | None,
) -> PieceBatch:
    table = np.array(pieces, dtype=np.int64)  # [pieces, 4]
    row, token, count, position = table.T
    num_blocks = -(-pieces[0].num_tiles * KEY_TILE // block_size)
    num_keys = num_blocks * block_size
    num_tiles = -(-num_keys // KEY_TILE)
    steps = np.arange(length)
    real = steps < count[:, None]  # [pieces, length]
    query = token[:, None] + np.where(real, steps, 0)
    keys = np.arange(num_tiles * KEY_TILE)
    visible_to = position[:, None] + np.where(real, steps, 0)  # [pieces, length]
    hidden = keys > visible_to[:, :, None]  # [pieces, length, keys]
    if window is not None:
        hidden |= keys <= visible_to[:, :, None] - window
    unwritten = keys >= (position + count)[:, None]  # [pieces, keys]

    def to_device(array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return PieceBatch(
        num_pieces=len(pieces),
        length=length,
        num_tiles=num_tiles,
        queries=to_device(query.reshape(-1)),
        blocks=to_device(_block_ids(block_tables, row, num_blocks).reshape(-1)),
        hidden=to_device(_by_tile(hidden, group)),
        unwritten=to_device(np.flatnonzero(unwritten)),
        results=None if real.all() else to_device(np.flatnonzero(real)),
        targets=to_device(query[real]),
    )


def _block_ids(
    block_tables: IntArray, rows: npt.NDArray[np.int64], num_blocks: int
) -> npt.NDArray[np.int64]:
    """Return [rows, num_blocks]; columns past the table repeat block 0, to be masked."""
    ids = np.zeros((len(rows), num_blocks), dtype=np.int64)
    known = min(num_blocks, block_tables.shape[1])
    ids[:, :known] = block_tables[rows, :known]
    return ids


def _by_tile(hidden: npt.NDArray[np.bool_], group: int) -> npt.NDArray[np.bool_]:
    """[pieces, length, keys] -> [pieces, tiles, query rows, KEY_TILE], padding rows visible."""
    pieces, length, keys = hidden.shape
    tiles = hidden.reshape(pieces, length, keys // KEY_TILE, KEY_TILE).swapaxes(1, 2)
    by_row = np.zeros((pieces, keys // KEY_TILE, padded_rows(length, group), KEY_TILE), dtype=bool)
    by_row[:, :, : length * group] = np.repeat(tiles, group, axis=2)
    return by_row
