"""Copies of whole KV blocks: out to the host, from block to block, and in again."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cadenza.engine.kv_cache import HostCache, KVCache
from cadenza.scheduler.plan import Copies, Int32Array


class CopyTimes(NamedTuple):
    """How long the last copies took, in seconds; 0 where there were none."""

    swap_out_s: float
    swap_in_s: float


class BlockCopier:
    """Copies blocks within the memory of the CPU, one after the other."""

    def __init__(self, cache: KVCache, host: HostCache) -> None:
        self._device = cache.blocks
        self._host = host.blocks
        self._swap_out_s = 0.0
        self._swap_in_s = 0.0

    def run(self, copies: Copies) -> None:
        """Do the copies in their order; what is computed from now on sees them done."""
        self._swap_out_s = self._swap_in_s = 0.0
        if len(copies.swap_out):
            self._swap_out(copies.swap_out)
        if len(copies.on_write):
            self._copy_on_write(copies.on_write)
        if len(copies.swap_in):
            self._swap_in(copies.swap_in)

    def finish(self) -> CopyTimes:
        """Wait until nothing of the last `run` is under way, and return how long it took."""
        return CopyTimes(self._swap_out_s, self._swap_in_s)

    def _swap_out(self, pairs: Int32Array) -> None:
        self._swap_out_s = _copy_each(self._device, self._host, pairs)

    def _swap_in(self, pairs: Int32Array) -> None:
        self._swap_in_s = _copy_each(self._host, self._device, pairs)

    def _copy_on_write(self, pairs: Int32Array) -> None:
        """Read every source before the first write: one block may be both."""
        read = self._device.index_select(0, self._indices(pairs[:, 0]))
        self._device.index_copy_(0, self._indices(pairs[:, 1]), read)

    def _indices(self, blocks: Int32Array) -> Tensor:
        """[copies], int64, on the device."""
        return torch.from_numpy(blocks.astype(np.int64)).to(self._device.device)


class CudaBlockCopier(BlockCopier):
    """Copies between a GPU and pinned memory, in a stream of their own.

    All copies from and to the host are in that one stream, so that a swap-in sees what an earlier
    swap-out wrote, and a swap-out does not overwrite what an earlier swap-in still reads. Blocks on
    the device are read and written in the stream that computes: one that was swapped out may be
    overwritten at once. Tests without a GPU do not exercise this class.
    """

    def __init__(self, cache: KVCache, host: HostCache) -> None:
        super().__init__(cache, host)
        self._computing = torch.cuda.current_stream(self._device.device)
        self._copying = torch.cuda.Stream(self._device.device)  # type: ignore[no-untyped-call]
        self._out, self._in = _Span(self._copying), _Span(self._copying)
        self._is_copying_out = False

    def finish(self) -> CopyTimes:
        if self._is_copying_out:
            # beside the pass, which has usually taken longer
            self._swap_out_s = self._out.wait()
            self._is_copying_out = False
        return super().finish()

    def _swap_out(self, pairs: Int32Array) -> None:
        """Start the copies, which go on beside the pass."""
        staged = self._device.index_select(0, self._indices(pairs[:, 0]))
        self._copying.wait_stream(self._computing)
        with torch.cuda.stream(self._copying), self._out:
            for index, block in enumerate(pairs[:, 1].tolist()):
                self._host[block].copy_(staged[index], non_blocking=True)
        # nobody is given its memory before the copies are done
        staged.record_stream(self._copying)
        self._is_copying_out = True

    def _swap_in(self, pairs: Int32Array) -> None:
        """Copy and wait: the pass needs these blocks, and its own time is told without them."""
        with torch.cuda.stream(self._copying), self._in:
            staged = self._device.new_empty((len(pairs), *self._device.shape[1:]))
            for index, block in enumerate(pairs[:, 0].tolist()):
                staged[index].copy_(self._host[block], non_blocking=True)
        self._swap_in_s = self._in.wait()
        self._device.index_copy_(0, self._indices(pairs[:, 1]), staged)
        staged.record_stream(self._computing)


class _Span:
    """How long a stream takes for what it is given between entering and leaving."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def __enter__(self) -> None:
        self._start.record(self._stream)

    def __exit__(self, *_: object) -> None:
        self._end.record(self._stream)

    def wait(self) -> float:
        """Wait for the end, and return how long it was, in seconds."""
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) / 1e3


def block_copier(cache: KVCache, host: HostCache) -> BlockCopier:
    """Return the copier for the device of `cache`."""
    kind = BlockCopier if cache.blocks.device.type == "cpu" else CudaBlockCopier
    return kind(cache, host)


def _copy_each(source: Tensor, target: Tensor, pairs: Int32Array) -> float:
    """Copy block after block; returns the seconds it took.

    One gather and one scatter of all took 120 us a block of 700 KB where this takes 50.
    """
    start_s = time.perf_counter()
    for from_block, to_block in pairs.tolist():
        target[to_block].copy_(source[from_block])
    return time.perf_counter() - start_s
