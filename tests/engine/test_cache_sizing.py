"""What is left of a device's memory for the KV cache, and that the largest step was rehearsed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cadenza.engine import startup
from cadenza.engine.cache_sizing import blocks_beside, largest_plan
from cadenza.engine.device import Memory
from cadenza.engine.startup import RunnerParts
from cadenza.scheduler.plan import StepPlan
from cadenza.wire.messages import EngineConfig, Sampling
from tests.engine.fake_device import FakeDevice
from tests.engine.hash_model import CUTTER, SHAPE, HashModel

GIB = 1 << 30
BLOCK = SHAPE.block_bytes


def test_what_is_free_of_our_share_becomes_blocks() -> None:
    memory = Memory(free=60 * GIB, total=80 * GIB)

    # 8 GiB of all 80 are to stay free, and staging takes 2
    found = blocks_beside(memory, 0.9, block_bytes=2 << 20, staging_bytes=2 * GIB)
    assert found == 50 * 512
    assert blocks_beside(memory, 1.0, block_bytes=GIB, staging_bytes=0) == 60


def test_too_little_memory_is_told_with_what_there_is() -> None:
    memory = Memory(free=7 * GIB, total=80 * GIB)

    with pytest.raises(
        ValueError, match=r"gpu_memory_utilization is 0\.9, but of 80\.0 GiB only 7"
    ):
        blocks_beside(memory, 0.9, block_bytes=1, staging_bytes=0)
    with pytest.raises(ValueError, match="leaves no block of 4096 bytes: raise it"):
        blocks_beside(memory._replace(free=8 * GIB + 4096), 0.9, block_bytes=4096, staging_bytes=9)


def test_the_largest_step_has_all_rows_and_all_tokens() -> None:
    plan = largest_plan(3, 32, 64, 4)
    assert plan.num_new.tolist() == [11, 11, 10]
    assert (plan.num_tokens, plan.samples.tolist()) == (32, [0, 1, 2])
    assert plan.tables.shape == (3, 3)
    assert not plan.tables.any()
    assert plan.layout().tokens.shape == (32,)

    assert largest_plan(8, 5, 64, 4).num_new.tolist() == [1] * 5
    assert largest_plan(2, 32, 7, 4).num_new.tolist() == [7, 7]


class Rehearsed:
    """Parts over the model of hashes, on a device that tells how much memory it has."""

    def __init__(self, memory: Memory | None, patch: pytest.MonkeyPatch, **changes: Any) -> None:
        config = EngineConfig(
            model="unused", block_size=4, max_num_seqs=3, max_num_batched_tokens=32, **changes
        )
        self.device = FakeDevice(None, has=memory)
        self.plans: list[StepPlan] = []
        model: Any = HashModel()
        patch.setattr(startup, "_cutter", lambda *_, **__: CUTTER)
        prepared = startup.ModelRunner._prepared

        def noted(runner: Any, plan: StepPlan, others: Any = ()) -> Any:
            self.plans.append(plan)
            return prepared(runner, plan, others)

        patch.setattr(startup.ModelRunner, "_prepared", noted)
        self.parts = RunnerParts(config, model, lambda _: (Sampling(), 0), self.device)


def test_the_cache_takes_what_the_largest_step_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(free=1000 * BLOCK, total=2000 * BLOCK)
    rehearsed = Rehearsed(memory, monkeypatch, swap_bytes=10 * BLOCK, gpu_memory_utilization=0.75)

    cache, host = rehearsed.parts.caches()

    assert cache.num_blocks == 1000 - 500 - 10
    assert host.num_blocks == 10
    assert [plan.num_tokens for plan in rehearsed.plans] == [32]
    assert rehearsed.device.num_captures == 1, "the largest graph takes memory, too"
    assert not rehearsed.parts.sampler._shaping, "nobody sits where the rehearsal sat"


def test_memory_is_asked_for_while_the_allocator_keeps_what_the_largest_step_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who captures gives that back first, and it would count as free."""
    kept: list[StepPlan] = []
    capture, execute = FakeDevice.capture, startup.ModelRunner.execute

    def giving_back(device: FakeDevice, *work: Any) -> Any:
        kept.clear()
        return capture(device, *work)

    def keeping(runner: Any, plan: StepPlan) -> Any:
        kept.append(plan)
        return execute(runner, plan)

    monkeypatch.setattr(FakeDevice, "capture", giving_back)
    monkeypatch.setattr(startup.ModelRunner, "execute", keeping)
    monkeypatch.setattr(
        FakeDevice, "memory", lambda _: Memory((1000 - 100 * len(kept)) * BLOCK, 2000 * BLOCK)
    )
    rehearsed = Rehearsed(None, monkeypatch, swap_bytes=0, gpu_memory_utilization=0.75)

    assert rehearsed.parts.caches()[0].num_blocks == 1000 - 500 - 100


def test_a_step_that_does_not_fit_is_told_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed = Rehearsed(Memory(free=GIB, total=2 * GIB), monkeypatch)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(HashModel, "hidden", full)
    with pytest.raises(ValueError, match="The largest step, 32 tokens of 3 rows, does not fit"):
        rehearsed.parts.caches()


@pytest.mark.parametrize(
    ("changes", "blocks"),
    [
        ({"num_blocks": 7}, 7),
        ({"kv_cache_bytes": 9 * BLOCK}, 9),
        ({"num_blocks": 7, "kv_cache_bytes": 9 * BLOCK}, 7),
    ],
    ids=str,
)
def test_a_size_that_is_asked_for_is_taken_without_rehearsal(
    changes: dict[str, int], blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed = Rehearsed(Memory(free=1, total=2), monkeypatch, swap_bytes=0, **changes)

    cache, _ = rehearsed.parts.caches()

    assert cache.num_blocks == blocks
    assert rehearsed.plans == []


def test_a_device_in_the_memory_of_the_host_takes_a_gibibyte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rehearsed = Rehearsed(None, monkeypatch, swap_bytes=0)
    monkeypatch.setattr(startup, "_CACHE_BYTES", 100 * BLOCK)

    assert rehearsed.parts.caches()[0].num_blocks == 100


def test_a_share_is_above_nothing_and_at_most_all() -> None:
    for share in (0.0, -0.5, 1.01, np.nan):
        with pytest.raises(ValueError, match="not above 0 and at most 1"):
            startup._check(EngineConfig(model="unused", gpu_memory_utilization=share))
