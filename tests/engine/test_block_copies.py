"""Copies in their order, against a model of three loops; every block is told by its number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from cadenza.engine.block_copies import (
    BlockCopier,
    StreamedBlockCopier,
    block_copier,
    max_staged,
)
from cadenza.engine.device import Stream, device_of
from cadenza.engine.kv_cache import CacheShape, HostCache, KVCache
from cadenza.scheduler.plan import Copies
from tests.engine.conftest import make_copies
from tests.engine.fake_device import FakeDevice

SHAPE = CacheShape(num_layers=2, block_size=4, num_kv_heads=1, head_dim=6, dtype=torch.float32)
NUM_BLOCKS, NUM_HOST_BLOCKS = 12, 6
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Blocks:
    """Device block i is filled with i, host block i with 100 + i."""

    def __init__(
        self, device: str, streams: FakeDevice | None = None, staged: int | None = None
    ) -> None:
        self.cache = KVCache(SHAPE, NUM_BLOCKS, torch.device(device))
        self.host = HostCache(SHAPE, NUM_HOST_BLOCKS, torch.device(device))
        for block in range(NUM_BLOCKS):
            self.cache.blocks[block] = block
        for block in range(NUM_HOST_BLOCKS):
            self.host.blocks[block] = 100 + block
        self.streams = streams or FakeDevice(None)
        self.copier: BlockCopier = (
            block_copier(self.cache, self.host, device_of(torch.device(device)))
            if streams is None
            else StreamedBlockCopier(self.cache, self.host, streams, staged)
        )

    def read(self) -> tuple[list[int], list[int]]:
        """What fills each device block and each host block, which must be one number."""
        found = []
        for blocks in (self.cache.blocks.cpu(), self.host.blocks):
            flat = blocks.flatten(1)
            assert torch.equal(flat, flat[:, :1].expand_as(flat))
            found.append(flat[:, 0].int().tolist())
        return found[0], found[1]


def expected(copies: Copies, device: list[int], host: list[int]) -> tuple[list[int], list[int]]:
    device, host = list(device), list(host)
    for source, target in copies.swap_out.tolist():
        host[target] = device[source]
    before = list(device)
    for source, target in copies.on_write.tolist():
        device[target] = before[source]
    for source, target in copies.swap_in.tolist():
        device[target] = host[source]
    return device, host


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "copies",
    [
        make_copies(),
        make_copies(swap_out=[(11, 0), (0, 5)]),
        make_copies(swap_in=[(5, 0), (0, 11)]),
        make_copies(on_write=[(3, 4), (3, 5)]),
        # a chain and a ring: every source as it was before the first write
        make_copies(on_write=[(1, 2), (2, 3), (3, 4)]),
        make_copies(on_write=[(3, 4), (2, 3), (1, 2)]),
        make_copies(on_write=[(1, 2), (2, 1)]),
        # swapped out and overwritten by a fork; by a swap-in
        make_copies(swap_out=[(7, 2)], on_write=[(1, 7)]),
        make_copies(swap_out=[(7, 2)], swap_in=[(3, 7)]),
        # out and in again elsewhere through the same host block
        make_copies(swap_out=[(7, 2)], swap_in=[(2, 8)]),
        # a fork's source is overwritten by a swap-in
        make_copies(on_write=[(4, 5)], swap_in=[(0, 4)]),
        make_copies(
            swap_out=[(6, 1), (7, 4)], on_write=[(8, 6), (8, 7)], swap_in=[(4, 8), (1, 9), (0, 10)]
        ),
    ],
    ids=str,
)
def test_copies_are_done_in_their_order(copies: Copies, device: str) -> None:
    blocks = Blocks(device)
    before = blocks.read()

    blocks.copier.run(copies)
    blocks.copier.finish()

    assert blocks.read() == expected(copies, *before)


def random_copies(chance: np.random.Generator) -> Copies:
    """Up to three of each kind, no block written twice."""
    out, write, into = chance.integers(0, 4, 3)
    targets = chance.permutation(NUM_BLOCKS)[: write + into]
    return make_copies(
        zip(
            chance.permutation(NUM_BLOCKS)[:out],
            chance.permutation(NUM_HOST_BLOCKS)[:out],
            strict=True,
        ),
        zip(chance.integers(0, NUM_BLOCKS, write), targets[:write], strict=True),
        zip(chance.integers(0, NUM_HOST_BLOCKS, into), targets[write:], strict=True),
    )


def test_indices_are_sent_from_memory_that_nobody_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    memory = FakeDevice.host_memory

    def noted(device: FakeDevice, num_bytes: int) -> torch.Tensor:
        taken.append(num_bytes)
        return memory(device, num_bytes)

    monkeypatch.setattr(FakeDevice, "host_memory", noted)
    blocks = Blocks("cpu", FakeDevice(None), staged=2)

    blocks.copier.run(make_copies([(6, 1)], [(8, 6), (8, 7)], [(4, 8), (1, 9), (0, 10)]))
    blocks.copier.finish()

    assert taken == [8, 16, 16, 8, 16]


@pytest.mark.parametrize("device", DEVICES)
def test_random_copies_over_many_steps(device: str) -> None:
    chance = np.random.default_rng(5)
    blocks = Blocks(device)
    held = blocks.read()
    for _ in range(100):
        copies = random_copies(chance)
        held = expected(copies, *held)

        blocks.copier.run(copies)

    blocks.copier.finish()
    assert blocks.read() == held


@pytest.mark.parametrize("device", DEVICES)
def test_only_what_was_done_took_time(device: str) -> None:
    copier = Blocks(device).copier

    copier.run(make_copies(swap_out=[(0, 0)]))
    out = copier.finish()
    copier.run(make_copies(swap_in=[(0, 0)]))
    into = copier.finish()
    copier.run(make_copies(on_write=[(0, 1)]))
    none = copier.finish()

    assert out.swap_out_s > 0 == out.swap_in_s
    assert into.swap_in_s > 0 == into.swap_out_s
    assert none == (0, 0)


@pytest.mark.parametrize("staged", [None, 2], ids=["roomy", "in pieces"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("prefer", [*Stream, None], ids=str)
def test_copies_beside_the_pass_are_the_same_in_every_order_of_streams(
    prefer: Stream | None, seed: int, staged: int | None
) -> None:
    """The pass overwrites what was swapped out and reads what was swapped in, and frames are late.

    Steps are not finished one by one: the next one's copies begin while those of this one go on.
    """
    streams = FakeDevice(prefer, seed)
    blocks = Blocks("cpu", streams, staged)
    chance = np.random.default_rng(seed)
    held = blocks.read()
    for step in range(40):
        copies = random_copies(chance)
        device, host = expected(copies, *held)
        freed = sorted(set(copies.swap_out[:, 0].tolist()))
        read: list[float] = []

        blocks.copier.run(copies)
        streams.run(Stream.COMPUTE, _pass(blocks, freed, 1000 + step, read))
        if chance.random() < 0.3:
            blocks.copier.finish()
            streams.finish_all()
            assert read == device, "the pass sees all copies done"
        for block in freed:
            device[block] = 1000 + step
        held = device, host

    streams.finish_all()
    assert blocks.read() == held


def _pass(blocks: Blocks, freed: list[int], value: int, read: list[float]) -> Callable[[], None]:
    def work() -> None:
        read.extend(blocks.cache.blocks.flatten(1)[:, 0].tolist())
        for block in freed:
            blocks.cache.blocks[block] = value

    return work


def test_blocks_come_in_without_the_host_waiting_for_them() -> None:
    late = Blocks("cpu", FakeDevice(Stream.COPY))

    late.copier.run(make_copies(swap_in=[(2, 2)]))

    assert late.read()[0][2] == 2, "the scatter is late, and nobody has waited"
    late.streams.finish_all()
    assert late.read()[0][2] == 102


def test_a_swap_takes_no_more_of_the_device_than_its_staging() -> None:
    """However many blocks go, in pieces of what there is."""
    blocks = Blocks("cpu", FakeDevice(None, 3), staged=2)
    before = blocks.read()
    copies = make_copies(
        swap_out=[(block, block) for block in range(5)],
        swap_in=[(block, 11 - block) for block in range(6)],
    )

    blocks.copier.run(copies)
    blocks.copier.finish()
    blocks.streams.finish_all()

    assert blocks.read() == expected(copies, *before)
    assert blocks.copier._staging.shape[0] == 2  # type: ignore[attr-defined]


def test_staging_is_bounded_and_no_larger_than_the_host_has_room_for() -> None:
    assert max_staged(1000, 2 << 20) == 128
    assert max_staged(5, 2 << 20) == 5
    assert max_staged(5, 1 << 30) == 1
    assert max_staged(0, 1 << 30) == 0
