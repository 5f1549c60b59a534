"""Copies of whole KV blocks: out to the host, from block to block, and in again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cadenza.engine.device import Device, Span, Stream
from cadenza.engine.kv_cache import HostCache, KVCache
from cadenza.kernels.block_moves import copy_blocks, gather_blocks, scatter_blocks
from cadenza.scheduler.plan import Copies, Int32Array

_STAGING_BYTES = 256 << 20  # of the device: 128 blocks of Llama 3.1 8B, 10 ms of a PCIe 4 link


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

    @property
    def num_host_blocks(self) -> int:
        return len(self._host)

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
        return torch.from_numpy(blocks.astype(np.int64))


class StreamedBlockCopier(BlockCopier):
    """Copies between a device and pinned memory, in a stream of their own.

    All copies from and to the host are in that one stream, so that a swap-in sees what an earlier
    swap-out wrote, and a swap-out does not overwrite what an earlier swap-in still reads. Blocks on
    the device are read and written in the stream that computes, through contiguous staging memory:
    one that was swapped out may be overwritten at once. Staging is bounded: what does not fit is
    moved in pieces, for which the streams wait on each other.
    """

    def __init__(
        self,
        cache: KVCache,
        host: HostCache,
        streams: Device,
        staged: int | None = None,
    ) -> None:
        """staged: blocks that staging has room for; None: `max_staged`."""
        super().__init__(cache, host)
        self._streams = streams
        room = max_staged(host.num_blocks, cache.shape.block_bytes) if staged is None else staged
        self._staging = self._device.new_empty((room, *self._device.shape[1:]))
        self._taken = 0  # blocks of it that copies may still be using
        self._out: list[Span] = []  # of copies that may be under way, to the host
        self._in: list[Span] = []  # and from it

    def finish(self) -> CopyTimes:
        self._swap_out_s += _waited(self._out)
        self._swap_in_s += _waited(self._in)
        self._taken = 0
        return super().finish()

    def _swap_out(self, pairs: Int32Array) -> None:
        """Start the copies, which go on beside the pass."""
        for piece, staged in self._pieces(pairs):
            sources = self._indices(piece[:, 0])
            copy = partial(_empty, staged, self._host, piece[:, 1])
            self._streams.run(Stream.COMPUTE, partial(gather_blocks, self._device, sources, staged))
            self._streams.wait(Stream.COPY, on=Stream.COMPUTE)
            self._out.append(self._streams.run(Stream.COPY, copy))

    def _swap_in(self, pairs: Int32Array) -> None:
        """Start the copies, for which the pass will wait, but not the host."""
        for piece, staged in self._pieces(pairs):
            targets = self._indices(piece[:, 1])
            # what computes may still be reading this part of the staging
            self._streams.wait(Stream.COPY, on=Stream.COMPUTE)
            copy = partial(_fill, staged, self._host, piece[:, 0])
            self._in.append(self._streams.run(Stream.COPY, copy))
            self._streams.wait(Stream.COMPUTE, on=Stream.COPY)
            self._streams.run(
                Stream.COMPUTE, partial(scatter_blocks, staged, self._device, targets)
            )

    def _copy_on_write(self, pairs: Int32Array) -> None:
        sources, targets = self._indices(pairs[:, 0]), self._indices(pairs[:, 1])
        self._streams.run(Stream.COMPUTE, lambda: copy_blocks(self._device, sources, targets))

    def _indices(self, blocks: Int32Array) -> Tensor:
        """Pinned: a copy from other memory would wait for all that computes, and for swaps."""
        host = self._streams.host_memory(8 * len(blocks)).view(torch.int64)
        host.numpy()[:] = blocks
        return host.to(self._device.device, non_blocking=True)

    def _pieces(self, pairs: Int32Array) -> Iterator[tuple[Int32Array, Tensor]]:
        """Yield pairs with a part of the staging each, which nobody else uses any more."""
        start = 0
        while start < len(pairs):
            if self._taken == len(self._staging):
                self._streams.wait(Stream.COPY, on=Stream.COMPUTE)
                self._streams.wait(Stream.COMPUTE, on=Stream.COPY)
                self._taken = 0
            first = self._taken
            self._taken = min(len(self._staging), first + len(pairs) - start)
            count = self._taken - first
            yield pairs[start : start + count], self._staging[first : self._taken]
            start += count


def max_staged(num_host_blocks: int, block_bytes: int) -> int:
    """Return how many blocks a device of its own memory has beside its cache, for swaps."""
    return min(max(1, _STAGING_BYTES // block_bytes), num_host_blocks)


def block_copier(cache: KVCache, host: HostCache, device: Device) -> BlockCopier:
    """Return the copier for the device of `cache`."""
    if device.works_beside:
        return StreamedBlockCopier(cache, host, device)
    return BlockCopier(cache, host)


def _fill(staged: Tensor, host: Tensor, blocks: Int32Array) -> None:
    for index, block in enumerate(blocks.tolist()):
        staged[index].copy_(host[block], non_blocking=True)


def _empty(staged: Tensor, host: Tensor, blocks: Int32Array) -> None:
    for index, block in enumerate(blocks.tolist()):
        host[block].copy_(staged[index], non_blocking=True)


def _waited(spans: list[Span]) -> float:
    """Wait for all, forget them, and return how long they took in all."""
    took_s = sum(span.wait() for span in spans)
    spans.clear()
    return took_s


def _copy_each(source: Tensor, target: Tensor, pairs: Int32Array) -> float:
    """Copy block after block; returns the seconds it took.

    One gather and one scatter of all took 120 us a block of 700 KB where this takes 50.
    """
    start_s = time.perf_counter()
    for from_block, to_block in pairs.tolist():
        target[to_block].copy_(source[from_block])
    return time.perf_counter() - start_s
