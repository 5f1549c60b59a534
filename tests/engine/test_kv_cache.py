"""Caches on the CPU: zeros that cost nothing until they are written, each block in one piece."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from cadenza.engine.kv_cache import CacheShape, HostCache, KVCache

SHAPE = CacheShape(num_layers=3, block_size=16, num_kv_heads=2, head_dim=8, dtype=torch.bfloat16)
CPU = torch.device("cpu")


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("kind", [KVCache, HostCache])
def test_memory_is_taken_as_blocks_are_written(kind: type[KVCache] | type[HostCache]) -> None:
    num_blocks = SHAPE.num_blocks_in(256 << 20)
    before = resident_bytes()

    blocks = kind(SHAPE, num_blocks, CPU).blocks

    assert resident_bytes() - before < 32 << 20
    blocks[: num_blocks // 2] = 1.0
    assert resident_bytes() - before > 96 << 20
    assert not blocks[num_blocks // 2 :].any()


@pytest.mark.parametrize("kind", [KVCache, HostCache])
def test_a_block_is_contiguous_and_begins_on_its_own_bytes(
    kind: type[KVCache] | type[HostCache],
) -> None:
    blocks = kind(SHAPE, 5, CPU).blocks

    assert blocks.shape == (5, 3, 2, 16, 2, 8)
    assert blocks.dtype == torch.bfloat16
    assert blocks.stride(0) * 2 == SHAPE.block_bytes
    assert blocks.data_ptr() % 4096 == 0
    assert blocks.is_contiguous()


def test_there_may_be_no_host_blocks() -> None:
    assert HostCache(SHAPE, 0, CPU).blocks.shape == (0, 3, 2, 16, 2, 8)
