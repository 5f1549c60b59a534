"""How a step's attention is cut for Triton: query tiles, and splits of the keys that each sees.

A tile is some positions of one row, with all query heads of a KV head packed beside each other, so
that a key is read once for them. Its keys are divided among programs where tiles alone would leave
the device idle, as in decoding; each leaves a partial result, and a second kernel combines them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

KEY_TILE = 64  # keys a program looks at at once
LEAST_QUERY_ROWS = 16  # what a matrix instruction takes
_PREFILL_QUERY_ROWS = 64  # 32 from 256 dimensions a head on: the accumulators fill the registers
_WIDE_HEAD_DIM = 256
_INVARIANT_SPLIT_KEYS = 512  # a program; a row of 8,192 tokens decodes on 16 of them a KV head
_MOST_SPLITS = 16
_PROGRAMS_A_PROCESSOR = 2  # that keep a multiprocessor busy
_PARTIAL_BYTES = 64 << 20  # partial results of one launch

IntArray = npt.NDArray[np.integer]


class Splits(NamedTuple):
    """How the keys of each tile of a batch are divided among programs."""

    number: int  # programs a tile; 1: no partial results
    keys: int  # a program, a multiple of KEY_TILE; 0: an equal part of what the tile sees


class QueryTiles(NamedTuple):
    """Tiles of one shape; a tile of no positions is padding, for which nothing is written."""

    first_tokens: Tensor  # [tiles] int32, index of the first token of each
    positions: Tensor  # [tiles] int32, of that token in its row's sequence
    counts: Tensor  # [tiles] int32, positions that are real
    rows: Tensor  # [tiles] int32, of block_tables
    block_tables: Tensor  # [rows, blocks] int32
    query_rows: int  # of a tile: a power of two, at least the group
    splits: Splits


class _Tile(NamedTuple):
    first_token: int
    position: int
    num_real: int
    row: int

    @property
    def num_keys(self) -> int:
        return self.position + self.num_real


class HostTiles(NamedTuple):
    """Tiles as the host has cut them, before the device knows of them."""

    columns: npt.NDArray[np.int32]  # [4, tiles], the first four of `QueryTiles`
    query_rows: int
    splits: Splits

    def on_device(self, columns: Tensor, block_tables: Tensor) -> QueryTiles:
        """Return them with their columns and the step's block tables on a device."""
        first_tokens, positions, counts, rows = columns.unbind()
        return QueryTiles(
            first_tokens, positions, counts, rows, block_tables, self.query_rows, self.splits
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TileCutter:
    """How the steps of one model are cut for one device."""

    kv_heads: int
    group: int  # query heads a KV head
    head_dim: int
    processors: int  # multiprocessors of the device
    # Whether a token's bits must not depend on the other rows nor on how its own row was cut. Then
    # all tiles have one shape, and their keys are split at fixed positions.
    invariant: bool = False

    def cut(self, num_context: IntArray, num_new: IntArray) -> tuple[HostTiles, ...]:
        """Cut one step of rows [rows] that lie one after another, `num_new[i]` tokens each."""
        query_rows = least_query_rows(self.group)
        if self.invariant:
            tiles = list(_cut(num_context, num_new, query_rows // self.group))
            splits = invariant_splits(max((tile.num_keys for tile in tiles), default=0))
            each = self.kv_heads * splits.number * query_rows * (self.head_dim + 2) * 4
            size = max(1, _PARTIAL_BYTES // each)
            parts = [tiles[start : start + size] for start in range(0, len(tiles), size)]
            return tuple(_batch(part, query_rows, splits) for part in parts)
        decoding = num_new == 1
        decodes = list(_cut(num_context, np.where(decoding, num_new, 0), 1, num_new))
        batches = []
        if decodes:
            batches.append(_batch(decodes, query_rows, self.decode_splits(len(decodes))))
        query_rows = prefill_query_rows(self.group, self.head_dim)
        counts = np.where(decoding, 0, num_new)
        prefills = list(_cut(num_context, counts, query_rows // self.group, num_new))
        if prefills:
            batches.append(_batch(prefills, query_rows, Splits(1, 0)))
        return tuple(batches)

    def decode_splits(self, num_rows: int) -> Splits:
        """Return how the keys of so many decoding rows are split, where bits may depend on it."""
        return decode_splits(num_rows * self.kv_heads, self.processors)


def plan_tiles(
    num_context: IntArray,
    num_new: IntArray,
    block_tables: IntArray,
    *,
    kv_heads: int,
    group: int,
    head_dim: int,
    device: torch.device,
    invariant: bool = False,
) -> tuple[QueryTiles, ...]:
    """Cut one step as `TileCutter` does, and tell the device. block_tables: [rows, blocks]."""
    cutter = TileCutter(
        kv_heads=kv_heads,
        group=group,
        head_dim=head_dim,
        processors=num_processors(device),
        invariant=invariant,
    )
    tables = _to_device(block_tables, device)
    return tuple(
        tiles.on_device(_to_device(tiles.columns, device), tables)
        for tiles in cutter.cut(num_context, num_new)
    )


def least_query_rows(group: int) -> int:
    """Return the query rows of a tile of one position."""
    return max(LEAST_QUERY_ROWS, _power_of_two_from(group))


def prefill_query_rows(group: int, head_dim: int) -> int:
    """Return the query rows of a tile of a prefill."""
    rows = _PREFILL_QUERY_ROWS if head_dim < _WIDE_HEAD_DIM else _PREFILL_QUERY_ROWS // 2
    return max(rows, _power_of_two_from(group))


def decode_splits(num_programs: int, processors: int) -> Splits:
    """Return into how many parts keys are split, for programs that are otherwise so many."""
    wanted = -(-_PROGRAMS_A_PROCESSOR * processors // num_programs)
    return Splits(min(_power_of_two_from(wanted), _MOST_SPLITS), 0)


def invariant_splits(most_keys: int) -> Splits:
    """Return splits at fixed positions for tiles that see at most so many keys."""
    return Splits(max(1, -(-most_keys // _INVARIANT_SPLIT_KEYS)), _INVARIANT_SPLIT_KEYS)


def num_processors(device: torch.device) -> int:
    """Return how many multiprocessors a device has; 1 for the interpreter."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _cut(
    num_context: IntArray, counts: IntArray, most: int, num_new: IntArray | None = None
) -> Iterator[_Tile]:
    """Cut `counts` tokens of each row; num_new: where the rows lie, if there are more of them."""
    num_new = counts if num_new is None else num_new
    first_tokens = np.cumsum(num_new) - num_new
    for row in np.flatnonzero(counts).tolist():
        count, position = int(counts[row]), int(num_context[row])
        for start in range(0, count, most):
            yield _Tile(
                int(first_tokens[row]) + start, position + start, min(most, count - start), row
            )


def _batch(tiles: list[_Tile], query_rows: int, splits: Splits) -> HostTiles:
    columns = np.array(tiles, dtype=np.int32).T
    return HostTiles(np.ascontiguousarray(columns), query_rows, splits)


def _power_of_two_from(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def _to_device(array: IntArray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)).to(device)
