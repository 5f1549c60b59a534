"""The model runner: executes the scheduler's plans on a loaded model.

One forward pass serves prefill chunks and decodes of many rows together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cadenza.engine.kv_cache import CacheShape, KVCache
from cadenza.engine.loading import load_model
from cadenza.engine.models import Llama, ModelBatch, ProgressCallback
from cadenza.engine.sampler import Sampler
from cadenza.kernels.paged_attention import Workspace, plan_attention
from cadenza.scheduler.plan import StepOutcome, StepPlan
from cadenza.wire.messages import EngineConfig, Sampling

SettingsLookup: TypeAlias = Callable[[int], tuple[Sampling, int]]
"""Request id -> its sampling settings and choice index; called once for each `Seated`."""

_BUDGET_STEP = 16  # tokens
_LEAST_BUDGET, _MOST_BUDGET = 64, 2048  # tokens
_MEASURED_TOKENS = 64


class ModelRunner:
    """Runs plans on a model and its cache; samples from the logits."""

    def __init__(
        self, model: Llama, cache: KVCache, sampler: Sampler, settings: SettingsLookup
    ) -> None:
        self._model = model
        self._cache = cache
        self._sampler = sampler
        self._settings = settings
        self._workspace = Workspace()

    @property
    def cache(self) -> KVCache:
        return self._cache

    def execute(self, plan: StepPlan) -> StepOutcome:
        """Run one forward pass and sample the rows that the plan wants sampled."""
        for seated in plan.seated:
            self._sampler.seat(seated.seat, *self._settings(seated.request))
        rows = np.flatnonzero(plan.samples)
        tokens = np.full(plan.num_rows, -1, dtype=np.int32)
        failed = np.zeros(plan.num_rows, dtype=np.bool_)
        if plan.num_rows == 0:
            return StepOutcome(step_id=plan.step_id, tokens=tokens, failed=failed)
        logits = self.logits(plan)
        positions = (plan.num_context + plan.num_new)[rows]
        with torch.inference_mode():
            sampled = self._sampler.sample(logits, plan.seats[rows], positions)
        tokens[rows], failed[rows] = sampled.tokens, sampled.failed
        logprobs = {int(rows[row]): found for row, found in sampled.logprobs.items()}
        return StepOutcome(step_id=plan.step_id, tokens=tokens, failed=failed, logprobs=logprobs)

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> Tensor:
        """Run the forward pass alone; logits [sampled rows, vocab_size], fp32, in row order."""
        return self._model.forward(self._batch(plan), self._cache)

    def measure_tokens_per(self, step_time_s: float) -> int:
        """Return how many prompt tokens a step may compute to last about `step_time_s`.

        A multiple of 16 from 64 to 2048. Times a prefill of 64 tokens; call it before serving,
        as it writes to the first blocks of the cache.
        """
        plan = self._prefill_plan(self._measurable_tokens())
        self.logits(plan)
        # the quicker of two: a busy neighbour only ever adds time
        took_s = min(self._timed(plan) for _ in range(2))
        tokens = int(step_time_s / took_s * plan.num_tokens)
        return min(max(tokens // _BUDGET_STEP * _BUDGET_STEP, _LEAST_BUDGET), _MOST_BUDGET)

    def _measurable_tokens(self) -> int:
        pool = self._cache.num_blocks * self._cache.shape.block_size
        return min(_MEASURED_TOKENS, pool, self._model.config.max_positions)

    def _timed(self, plan: StepPlan) -> float:
        start_s = time.perf_counter()
        # to the host, so that an asynchronous device has finished
        self.logits(plan).cpu()
        return time.perf_counter() - start_s

    def _prefill_plan(self, count: int) -> StepPlan:
        positions = np.arange(count)
        num_blocks = -(-count // self._cache.shape.block_size)
        return StepPlan(
            step_id=0,
            requests=np.zeros(1, dtype=np.int64),
            seats=np.zeros(1, dtype=np.int32),
            num_context=np.zeros(1, dtype=np.int32),
            num_new=np.array([count], dtype=np.int32),
            samples=np.array([True]),
            tokens=(positions % self._model.config.vocab_size).astype(np.int32),
            positions=positions.astype(np.int32),
            slots=positions.astype(np.int64),
            block_tables=np.arange(num_blocks, dtype=np.int32)[None],
            seated=(),
        )

    def _batch(self, plan: StepPlan) -> ModelBatch:
        device, block_size = self._model.device, self._cache.shape.block_size
        last_tokens = np.cumsum(plan.num_new) - 1

        def to_device(array: npt.NDArray[np.integer[Any]]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(device)

        return ModelBatch(
            tokens=to_device(plan.tokens),
            positions=to_device(plan.positions),
            blocks=to_device(plan.slots // block_size),
            offsets=to_device(plan.slots % block_size),
            attention=plan_attention(
                plan.num_context,
                plan.num_new,
                plan.block_tables,
                block_size=block_size,
                group=self._model.config.group,
                head_dim=self._model.config.head_dim,
                device=device,
                workspace=self._workspace,
            ),
            sampled=to_device(last_tokens[plan.samples]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerFacts:
    """The figures in force, for `wire.messages.Ready`."""

    max_model_len: int  # tokens, not more than the pool holds
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    num_blocks: int
    block_size: int  # tokens
    max_num_seqs: int
    max_num_batched_tokens: int
    device: str
    dtype: str
    load_s: float


def build_runner(
    config: EngineConfig, settings: SettingsLookup, progress: ProgressCallback
) -> tuple[ModelRunner, RunnerFacts]:
    """Load the model, allocate the cache, calibrate the token budget.

    progress(stage, done, total) is called as stages move on; total is 0 where nothing can be
    counted. Raises CheckpointError for a model that cannot be used and ValueError for a setting
    that cannot; the text of either is one plain sentence.
    """
    start_s = time.perf_counter()
    _check(config)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    model = load_model(Path(config.model), config.device, config.dtype, progress)
    progress("cache", 0, 0)
    cache = _allocate(config, model)
    sampler = Sampler(config.max_num_seqs)
    runner = ModelRunner(model, cache, sampler, settings)
    progress("calibration", 0, 0)
    budget = config.max_num_batched_tokens or runner.measure_tokens_per(config.step_time_s)
    return runner, RunnerFacts(
        max_model_len=_max_model_len(config, model, cache),
        vocab_size=model.config.vocab_size,
        eos_token_ids=model.config.eos_token_ids,
        num_blocks=cache.num_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=budget,
        device=model.device.type,
        dtype=str(model.dtype).removeprefix("torch."),
        load_s=time.perf_counter() - start_s,
    )


def _check(config: EngineConfig) -> None:
    """Refuse settings that no model could serve with."""
    size = config.block_size
    if size < 1 or size & (size - 1):
        raise ValueError(f"block_size is {size}, not a power of two.")
    for name in (
        "num_blocks",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "threads",
    ):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}, not at least 1.")
    if config.step_time_s <= 0:
        raise ValueError(f"step_time_s is {config.step_time_s}, not positive.")


def _allocate(config: EngineConfig, model: Llama) -> KVCache:
    shape = CacheShape(
        num_layers=model.config.num_layers,
        block_size=config.block_size,
        num_kv_heads=model.config.num_kv_heads,
        head_dim=model.config.head_dim,
        dtype=model.dtype,
    )
    num_blocks = config.num_blocks or shape.num_blocks_in(config.kv_cache_bytes)
    if num_blocks < 1:
        raise ValueError(
            f"kv_cache_bytes is {config.kv_cache_bytes}, but one block of this model takes"
            f" {shape.block_bytes} bytes."
        )
    try:
        return KVCache(shape, num_blocks, model.device)
    except (RuntimeError, MemoryError) as error:
        size = num_blocks * shape.block_bytes / 2**30
        raise ValueError(
            f"a KV cache of {num_blocks} blocks ({size:.1f} GiB) does not fit into memory."
        ) from error


def _max_model_len(config: EngineConfig, model: Llama, cache: KVCache) -> int:
    trained = model.config.max_positions
    wanted = config.max_model_len or trained
    if wanted > trained:
        raise ValueError(f"max_model_len is {wanted}, but the model was made for {trained} tokens.")
    return min(wanted, cache.num_blocks * cache.shape.block_size)
