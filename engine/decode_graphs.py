"""Decode passes that were captured at start-up, one for each padded number of rows.

A pass over a few rows is hundreds of kernels of some microseconds each, which Python launches more
slowly than a GPU computes them. Replayed, they are launched as one. What a capture holds for good:
the addresses of weights, cache and the buffers here, the number of rows, and how keys are split.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cadenza.engine.device import Device, Work
from cadenza.engine.kv_cache import KVCache
from cadenza.engine.models import Model, ModelBatch, ProgressCallback
from cadenza.kernels.paged_attention import (
    QueryTiles,
    Splits,
    TileCutter,
    invariant_splits,
    least_query_rows,
)
from cadenza.scheduler.plan import StepPlan

_MOST_ROWS = 512  # captured; larger passes keep a GPU busy longer than their launches take
_MOST_INVARIANT_SPLITS = 16  # captured: rows of 8,192 tokens
_NOTHING = np.empty(0, dtype=np.int32)  # what a captured pass reads of the host


class Computed(NamedTuple):
    """What a pass leaves on the device."""

    hidden: Tensor  # [tokens, hidden]
    logits: Tensor  # [tokens or fewer, vocab_size] fp32


class GraphKey(NamedTuple):
    """What tells one capture from another."""

    rows: int  # padded
    splits: Splits


class DecodeInputs(NamedTuple):
    """What a pass is told, before it is sent."""

    places: npt.NDArray[np.int64]  # [4, padded rows]: tokens, positions, blocks, offsets
    block_tables: npt.NDArray[np.int32]  # [rows, blocks]


class DecodeGraphs:
    """The captures of one model over one cache."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        device: Device,
        cutter: TileCutter,
        *,
        most_rows: int,
        longest: int,
    ) -> None:
        """most_rows: that may decode at once; longest: tokens of a row at most."""
        self._model = model
        self._cache = cache
        self._device = device
        self._cutter = cutter
        self._sizes = padded_sizes(min(most_rows, _MOST_ROWS))
        self._longest = longest
        most_blocks = -(-longest // cache.shape.block_size)
        rows, at = self._sizes[-1], model.device
        # Read by captured kernels: their addresses are those of the first capture for good
        self._places = torch.zeros((4, rows), dtype=torch.int64, device=at)
        self._tables = torch.zeros((rows, most_blocks), dtype=torch.int32, device=at)
        self._numbers = torch.arange(rows, dtype=torch.int32, device=at)
        # And what they leave: each in a place of its own, logits would take gigabytes
        self._computed: Computed | None = None
        # graphs are replayed one after another, so that all may use the same memory in between
        self._pool = device.graph_pool()
        self._again: dict[GraphKey, Work] = {}

    def capture(self, progress: ProgressCallback) -> None:
        """Capture all passes, the largest first: the others then find room in its memory.

        It is told before each: together they may take longer than an engine may be silent.
        """
        keys = tuple(self._keys())
        for done, key in enumerate(keys):
            progress("graphs", done, len(keys))
            self._capture(key)

    def capture_largest(self) -> None:
        """Capture the pass that takes the most memory."""
        self._capture(next(self._keys()))

    def key_of(self, plan: StepPlan) -> GraphKey | None:
        """Return which capture computes a plan; None: it is to be computed launch by launch."""
        if plan.num_tokens != plan.num_rows or plan.num_rows > self._sizes[-1]:
            return None
        rows = next(size for size in self._sizes if size >= plan.num_rows)
        key = GraphKey(rows, self._splits(rows, int(plan.num_context.max()) + 1))
        return key if key in self._again else None

    @staticmethod
    def inputs(plan: StepPlan, key: GraphKey) -> DecodeInputs:
        """Return what the device is told of a plan. Padding rows have a token and no block."""
        layout = plan.layout()
        places = np.zeros((4, key.rows), dtype=np.int64)
        places[2] = -1
        places[:, : plan.num_rows] = layout[:4]
        return DecodeInputs(places, np.ascontiguousarray(layout.block_tables))

    def replay(self, key: GraphKey, places: Tensor, block_tables: Tensor) -> Computed:
        """Compute a plan from its inputs on the device; valid until the next replay.

        Rows beyond those of the plan mean nothing.
        """
        self._places[:, : key.rows].copy_(places)
        rows, blocks = block_tables.shape
        self._tables[:rows, :blocks].copy_(block_tables)
        self._again[key]()
        assert self._computed is not None
        return Computed(*(part[: key.rows] for part in self._computed))

    def _capture(self, key: GraphKey) -> None:
        self._places[2] = -1  # nothing is written while there is nothing to compute

        @torch.inference_mode()
        def work() -> None:
            hidden = self._model.hidden(self._batch(key), self._cache)
            found = Computed(hidden, self._model.logits(hidden))
            if self._computed is None:  # in a run before the first capture, where there is one
                most = self._sizes[-1]
                self._computed = Computed(*(part.new_empty(most, part.shape[1]) for part in found))
            for part, kept in zip(found, self._computed, strict=True):
                kept[: key.rows].copy_(part)

        self._again[key] = self._device.capture(work, self._pool)

    def _batch(self, key: GraphKey) -> ModelBatch:
        tokens, positions, blocks, offsets = self._places[:, : key.rows].unbind()
        numbers = self._numbers[: key.rows]
        tiles = QueryTiles(
            first_tokens=numbers,
            positions=positions.int(),
            counts=(blocks >= 0).int(),
            rows=numbers,
            block_tables=self._tables[: key.rows],
            query_rows=least_query_rows(self._cutter.group),
            splits=key.splits,
        )
        return ModelBatch(
            tokens=tokens,
            positions=positions,
            blocks=blocks,
            offsets=offsets,
            num_context=_NOTHING,
            num_new=_NOTHING,
            block_tables=_NOTHING,
            tiles=(tiles,),
        )

    def _keys(self) -> Iterator[GraphKey]:
        """Yield the captures to make, the largest first."""
        most = self._splits(1, self._longest).number if self._cutter.invariant else 1
        for rows in reversed(self._sizes):
            if not self._cutter.invariant:
                yield GraphKey(rows, self._splits(rows, 0))
                continue
            number = min(most, _MOST_INVARIANT_SPLITS)
            while number:
                yield GraphKey(rows, invariant_splits(0)._replace(number=number))
                number //= 2

    def _splits(self, rows: int, most_keys: int) -> Splits:
        """Return how keys are split; by invariant cutters among a power of two of programs."""
        if not self._cutter.invariant:
            return self._cutter.decode_splits(rows)
        exact = invariant_splits(most_keys)
        return exact._replace(number=1 << (exact.number - 1).bit_length())


def padded_sizes(most_rows: int) -> tuple[int, ...]:
    """Return the numbers of rows that passes are padded to."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, most_rows, 16)]
    return (*(size for size in sizes if size < most_rows), most_rows)
