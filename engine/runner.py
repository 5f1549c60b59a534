"""The model runner: executes the scheduler's plans on a loaded model.

Blocks are copied first; then one forward pass serves prefill chunks and decodes of many rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cadenza.engine.block_copies import BlockCopier, block_copier
from cadenza.engine.calibration import copy_block_seconds, token_seconds, tokens_within
from cadenza.engine.cores import stay_on
from cadenza.engine.kv_cache import CacheShape, HostCache, KVCache
from cadenza.engine.loading import load_model
from cadenza.engine.models import Model, ModelBatch, ProgressCallback
from cadenza.engine.prompt_scores import PromptScorer
from cadenza.engine.sampler import NOTHING_SAMPLED, Sampled, Sampler
from cadenza.kernels.linear import backend
from cadenza.scheduler.plan import Int32Array, PromptScores, StepOutcome, StepPlan, StepTimes
from cadenza.wire.messages import EngineConfig, Sampling, SamplingDefaults

SettingsLookup: TypeAlias = Callable[[int], tuple[Sampling, int]]
"""Request id -> its sampling settings and choice index; called once for each `Seated`."""

_Cache = TypeVar("_Cache", KVCache, HostCache)


class ModelRunner:
    """Runs plans on a model and its cache; samples from the logits."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        copier: BlockCopier,
        sampler: Sampler,
        settings: SettingsLookup,
    ) -> None:
        self._model = model
        self._cache = cache
        self._copier = copier
        self._sampler = sampler
        self._settings = settings
        self._scorer = PromptScorer(model)
        self._prompt_scores: Sequence[PromptScores] = ()  # of the pass under way

    @property
    def cache(self) -> KVCache:
        return self._cache

    @property
    def copier(self) -> BlockCopier:
        return self._copier

    def execute(self, plan: StepPlan) -> StepOutcome:
        """Copy blocks, run one forward pass, and draw the plan's samples."""
        for seated in plan.seated:
            sampling, choice = self._settings(seated.request)
            self._sampler.seat(seated, sampling, choice)
            self._scorer.seat(seated, sampling)
        self._prompt_scores = ()
        self._copier.run(plan.copies)
        start_s = time.perf_counter()
        sampled = self._sampled(plan) if plan.num_rows else NOTHING_SAMPLED
        forward_s = time.perf_counter() - start_s if plan.num_rows else 0.0
        return StepOutcome(
            step_id=plan.step_id,
            tokens=sampled.tokens,
            failed=sampled.failed,
            logprobs=sampled.logprobs,
            prompt_scores=self._prompt_scores,
            times=StepTimes(forward_s, *self._copier.finish()),
        )

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> Tensor:
        """Run the forward pass alone; logits [samples, vocab_size], fp32, in the plan's order.

        Prompts that want scores are scored on the way.
        """
        samples = plan.samples
        is_new = np.diff(samples, prepend=-1) > 0
        batch = self._batch(plan, samples[is_new])
        hidden = self._model.hidden(batch, self._cache)
        logits = self._model.logits(hidden.index_select(0, batch.sampled))
        if self._scorer.is_needed:
            self._prompt_scores = self._scorer.scores(plan, hidden)
        if len(logits) == len(samples):
            return logits
        # choices that share a row: its logits once more for each
        return logits.index_select(0, self._to_device(np.cumsum(is_new) - 1))

    @torch.inference_mode()
    def _sampled(self, plan: StepPlan) -> Sampled:
        positions = (plan.num_context + plan.num_new)[plan.samples]
        return self._sampler.sample(self.logits(plan), plan.sample_seats, positions)

    def _batch(self, plan: StepPlan, sampled_rows: Int32Array) -> ModelBatch:
        to_device = self._to_device
        last_tokens, layout = np.cumsum(plan.num_new) - 1, plan.layout()
        return ModelBatch(
            tokens=to_device(layout.tokens),
            positions=to_device(layout.positions),
            blocks=to_device(layout.blocks),
            offsets=to_device(layout.offsets),
            num_context=plan.num_context,
            num_new=plan.num_new,
            block_tables=layout.block_tables,
            sampled=to_device(last_tokens[sampled_rows]),
        )

    def _to_device(self, array: npt.NDArray[np.integer[Any]]) -> Tensor:
        indices = torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
        return indices.to(self._model.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerFacts:
    """The figures in force, and what was measured."""

    max_model_len: int  # tokens, not more than the pool holds
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    sampling: SamplingDefaults
    num_blocks: int
    num_host_blocks: int
    block_size: int  # tokens
    max_num_seqs: int
    max_num_batched_tokens: int
    device: str
    dtype: str
    quantization: str  # of the products of layers: "none" or "int8"
    layers: str  # what computes them: "native", "plain" or "transformers"
    products: str  # who multiplies matrices: "native" with a level, "onednn" or "torch"
    load_s: float
    token_s: float  # a prefill token takes; 0: not measured, because the token budget is given
    copy_block_s: float  # a block takes to the host, or back; 0: no room on the host


def build_runner(
    config: EngineConfig, settings: SettingsLookup, progress: ProgressCallback
) -> tuple[ModelRunner, RunnerFacts]:
    """Load the model, allocate the caches, calibrate the token budget, measure the copies.

    progress(stage, done, total) is called as stages move on; total is 0 where nothing can be
    counted. Raises CheckpointError for a model that cannot be used and ValueError for a setting
    that cannot; the text of either is one plain sentence.
    """
    start_s = time.perf_counter()
    _check(config)
    if config.cores is not None:
        stay_on(config.cores)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    model = load_model(
        Path(config.model),
        config.device,
        config.dtype,
        progress,
        config.max_model_len,
        config.quantization,
        config.weight_cache_bytes,
    )
    progress("cache", 0, 0)
    cache, host = _allocate(config, model)
    sampler = Sampler(config.max_num_seqs, model.config.vocab_size, model.device)
    runner = ModelRunner(model, cache, block_copier(cache, host), sampler, settings)
    progress("calibration", 0, 0)
    budget, token_s = config.max_num_batched_tokens, 0.0
    if budget is None:
        token_s = _token_seconds(runner, model)
        budget = tokens_within(config.step_time_s, token_s)
    copy_block_s = copy_block_seconds(
        runner.copier, num_blocks=cache.num_blocks, num_host_blocks=host.num_blocks
    )
    return runner, RunnerFacts(
        max_model_len=_max_model_len(config, model, cache),
        vocab_size=model.config.vocab_size,
        eos_token_ids=model.config.eos_token_ids,
        sampling=model.config.sampling,
        num_blocks=cache.num_blocks,
        num_host_blocks=host.num_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=budget,
        device=model.device.type,
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=config.quantization,
        layers=model.layers,
        products=backend(model.dtype) if model.device.type == "cpu" else "torch",
        load_s=time.perf_counter() - start_s,
        token_s=token_s,
        copy_block_s=copy_block_s,
    )


def _token_seconds(runner: ModelRunner, model: Model) -> float:
    return token_seconds(
        # to the host, so that an asynchronous device has finished
        lambda plan: runner.logits(plan).cpu(),
        num_blocks=runner.cache.num_blocks,
        block_size=runner.cache.shape.block_size,
        longest=model.config.max_positions,
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
    if config.swap_bytes < 0:
        raise ValueError(f"swap_bytes is {config.swap_bytes}, negative.")


def _allocate(config: EngineConfig, model: Model) -> tuple[KVCache, HostCache]:
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
    num_host_blocks = shape.num_blocks_in(config.swap_bytes)
    return (
        _allocated(KVCache, "a KV cache", shape, num_blocks, model.device),
        _allocated(HostCache, "swap space", shape, num_host_blocks, model.device),
    )


def _allocated(
    kind: Callable[[CacheShape, int, torch.device], _Cache],
    name: str,
    shape: CacheShape,
    num_blocks: int,
    device: torch.device,
) -> _Cache:
    try:
        return kind(shape, num_blocks, device)
    except (RuntimeError, MemoryError, OSError, OverflowError) as error:
        size = num_blocks * shape.block_bytes / 2**30
        raise ValueError(
            f"{name} of {num_blocks} blocks ({size:.1f} GiB) does not fit into memory."
        ) from error


def _max_model_len(config: EngineConfig, model: Model, cache: KVCache) -> int:
    trained = model.config.max_positions
    wanted = config.max_model_len or trained
    if wanted > trained:
        raise ValueError(f"max_model_len is {wanted}, but the model was made for {trained} tokens.")
    return min(wanted, cache.num_blocks * cache.shape.block_size)
