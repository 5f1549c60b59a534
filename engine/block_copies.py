"""Copies of whole KV blocks: out to the host, from block to block, and in again."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cadenza.engine.device import CudaDevice, Device, Span, Stream
from cadenza.engine.kv_cache import HostCache, KVCache
from cadenza.kernels.block_moves import copy_blocks, gather_blocks, scatter_blocks
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
        copy_blocks(self._device, self._indices(pairs[:, 0]), self._indices(pairs[:, 1]))

    def _indices(self, blocks: Int32Array) -> Tensor:
        """[copies], int64, on the device."""
        return torch.from_numpy(blocks.astype(np.int64)).to(self._device.device)


class StreamedBlockCopier(BlockCopier):
    """Copies between a device and pinned memory, in a stream of their own.

    All copies from and to the host are in that one stream, so that a swap-in sees what an earlier
    swap-out wrote, and a swap-out does not overwrite what an earlier swap-in still reads. Blocks on
    the device are read and written in the stream that computes, through contiguous staging memory:
    one that was swapped out may be overwritten at once.
    """

    def __init__(self, cache: KVCache, host: HostCache, streams: Device) -> None:
        super().__init__(cache, host)
        self._streams = streams
        self._out: Span | None = None  # of copies to the host that may be under way

    def finish(self) -> CopyTimes:
        if self._out is not None:
            # beside the pass, which has usually taken longer
            self._swap_out_s = self._out.wait()
            self._out = None
        return super().finish()

    def _swap_out(self, pairs: Int32Array) -> None:
        """Start the copies, which go on beside the pass."""
        staged, sources = self._staging(len(pairs)), self._indices(pairs[:, 0])

        def copy() -> None:
            for index, block in enumerate(pairs[:, 1].tolist()):
                self._host[block].copy_(staged[index], non_blocking=True)

        self._streams.run(Stream.COMPUTE, lambda: gather_blocks(self._device, sources, staged))
        self._streams.wait(Stream.COPY, on=Stream.COMPUTE)
        self._out = self._streams.run(Stream.COPY, copy, uses=(staged,))

    def _swap_in(self, pairs: Int32Array) -> None:
        """Copy and wait: the pass needs these blocks, and its own time is told without them."""
        staged, targets = self._staging(len(pairs)), self._indices(pairs[:, 1])

        def copy() -> None:
            for index, block in enumerate(pairs[:, 0].tolist()):
                staged[index].copy_(self._host[block], non_blocking=True)

        # what computes may still be using the memory that staging gets
        self._streams.wait(Stream.COPY, on=Stream.COMPUTE)
        self._swap_in_s = self._streams.run(Stream.COPY, copy, uses=(staged,)).wait()
        self._streams.run(Stream.COMPUTE, lambda: scatter_blocks(staged, self._device, targets))

    def _copy_on_write(self, pairs: Int32Array) -> None:
        sources, targets = self._indices(pairs[:, 0]), self._indices(pairs[:, 1])
        self._streams.run(Stream.COMPUTE, lambda: copy_blocks(self._device, sources, targets))

    def _staging(self, count: int) -> Tensor:
        return self._device.new_empty((count, *self._device.shape[1:]))


def block_copier(cache: KVCache, host: HostCache) -> BlockCopier:
    """Return the copier for the device of `cache`."""
    device = cache.blocks.device
    if device.type == "cpu":
        return BlockCopier(cache, host)
    return StreamedBlockCopier(cache, host, CudaDevice(device))


def _copy_each(source: Tensor, target: Tensor, pairs: Int32Array) -> float:
    """Copy block after block; returns the seconds it took.

    One gather and one scatter of all took 120 us a block of 700 KB where this takes 50.
    """
    start_s = time.perf_counter()
    for from_block, to_block in pairs.tolist():
        target[to_block].copy_(source[from_block])
    return time.perf_counter() - start_s
