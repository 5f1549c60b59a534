"""Builds a model runner: loads, sizes the caches, captures, calibrates."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from cadenza.engine.block_copies import block_copier, max_staged
from cadenza.engine.cache_sizing import blocks_beside, rehearse_largest
from cadenza.engine.calibration import (
    FEW_TOKENS,
    MOST_BUDGET,
    copy_block_seconds,
    token_seconds,
    tokens_within,
)
from cadenza.engine.cores import stay_on
from cadenza.engine.decode_graphs import DecodeGraphs
from cadenza.engine.device import Device, device_of
from cadenza.engine.kv_cache import CacheShape, HostCache, KVCache
from cadenza.engine.loading import load_model
from cadenza.engine.models import DecoderConfig, Model, ProgressCallback
from cadenza.engine.runner import ModelRunner, SettingsLookup
from cadenza.engine.sampler import Sampler
from cadenza.kernels.linear import backend
from cadenza.kernels.paged_attention import TileCutter, num_processors
from cadenza.kernels.triton_backend import uses_triton
from cadenza.wire.messages import EngineConfig, SamplingDefaults

_CACHE_BYTES = 1 << 30  # of the host, where nobody says how many

_Cache = TypeVar("_Cache", KVCache, HostCache)


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
    quantization: str  # of the products of layers: "none", "int8" or "fp8"
    layers: str  # what computes them: "native", "plain" or "transformers"
    products: str  # who multiplies matrices: "native" with a level, "onednn", "torch" or "triton"
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
        deterministic=config.deterministic,
    )
    progress("cache", 0, 0)
    parts = RunnerParts(config, model, settings, device_of(model.device))
    budget, token_s = config.max_num_batched_tokens, 0.0
    try:
        runner = parts.runner(*parts.caches())
        runner.capture(progress)
        progress("calibration", 0, 0)
        if budget is None:
            token_s = _token_seconds(runner, model)
            budget = tokens_within(config.step_time_s, token_s)
    except torch.OutOfMemoryError as error:
        raise ValueError(
            "The graphs of decodes, or a step, do not fit into memory beside the weights and the"
            " KV cache: lower num_blocks, kv_cache_bytes, gpu_memory_utilization or max_num_seqs."
        ) from error
    cache, num_host_blocks = runner.cache, runner.copier.num_host_blocks
    copy_block_s = copy_block_seconds(
        runner.copier, num_blocks=cache.num_blocks, num_host_blocks=num_host_blocks
    )
    return runner, RunnerFacts(
        max_model_len=min(parts.longest, cache.num_blocks * config.block_size),
        vocab_size=model.config.vocab_size,
        eos_token_ids=model.config.eos_token_ids,
        sampling=model.config.sampling,
        num_blocks=cache.num_blocks,
        num_host_blocks=num_host_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=budget,
        device=model.device.type,
        dtype=str(model.dtype).removeprefix("torch."),
        quantization=config.quantization,
        layers=model.layers,
        products=_products(config, model),
        load_s=time.perf_counter() - start_s,
        token_s=token_s,
        copy_block_s=copy_block_s,
    )


class RunnerParts:
    """What runners over caches of any size share."""

    def __init__(
        self, config: EngineConfig, model: Model, settings: SettingsLookup, device: Device
    ) -> None:
        """Raises ValueError for more tokens a row than the model was made for."""
        self._config = config
        self._model = model
        self._settings = settings
        self._device = device
        self._shape = CacheShape(
            num_layers=model.config.num_layers,
            block_size=config.block_size,
            num_kv_heads=model.config.num_kv_heads,
            head_dim=model.config.head_dim,
            dtype=model.dtype,
        )
        self.longest = _longest(config, model)
        self.sampler = Sampler(config.max_num_seqs, model.config.vocab_size, model.device)

    def caches(self) -> tuple[KVCache, HostCache]:
        """Allocate both. Raises ValueError where they do not fit."""
        num_host_blocks = self._shape.num_blocks_in(self._config.swap_bytes)
        num_blocks = self._config.num_blocks or self._num_blocks(num_host_blocks)
        return self._allocated(KVCache, "a KV cache", num_blocks), self._allocated(
            HostCache, "swap space", num_host_blocks
        )

    def runner(self, cache: KVCache, host: HostCache) -> ModelRunner:
        cutter = _cutter(self._model, invariant=self._config.deterministic)
        graphs = None
        if cutter is not None and not self._config.enforce_eager:
            graphs = DecodeGraphs(
                self._model,
                cache,
                self._device,
                cutter,
                most_rows=self._config.max_num_seqs,
                longest=self.longest,
            )
        return ModelRunner(
            self._model,
            cache,
            block_copier(cache, host, self._device),
            self.sampler,
            self._settings,
            self._device,
            cutter,
            graphs,
        )

    def _num_blocks(self, num_host_blocks: int) -> int:
        num_bytes, shape = self._config.kv_cache_bytes, self._shape
        if num_bytes is None and self._device.memory() is not None:
            return self._num_blocks_beside(num_host_blocks)
        num_bytes = _CACHE_BYTES if num_bytes is None else num_bytes
        if num_bytes < shape.block_bytes:
            raise ValueError(
                f"kv_cache_bytes is {num_bytes}, but one block of this model takes"
                f" {shape.block_bytes} bytes."
            )
        return shape.num_blocks_in(num_bytes)

    def _num_blocks_beside(self, num_host_blocks: int) -> int:
        """Return how many blocks fit beside the largest step, and into the share that we may have.

        The step is computed over a cache of one block, and the largest graph captured: what they
        took stays with the allocator, for those to come.
        """
        config, shape = self._config, self._shape
        runner = self.runner(self._allocated(KVCache, "a block", 1), self._no_host_blocks())
        tokens = config.max_num_batched_tokens or max(
            MOST_BUDGET, config.max_num_seqs + 4 * config.block_size
        )
        rehearse_largest(
            runner, self.sampler, num_rows=config.max_num_seqs, num_tokens=tokens, most=self.longest
        )
        memory = self._device.memory()
        assert memory is not None
        staged = max_staged(num_host_blocks, shape.block_bytes)
        return blocks_beside(
            memory,
            config.gpu_memory_utilization,
            block_bytes=shape.block_bytes,
            staging_bytes=staged * shape.block_bytes,
        )

    def _no_host_blocks(self) -> HostCache:
        return HostCache(self._shape, 0, self._model.device)

    def _allocated(
        self, kind: Callable[[CacheShape, int, torch.device], _Cache], name: str, num_blocks: int
    ) -> _Cache:
        try:
            return kind(self._shape, num_blocks, self._model.device)
        except (RuntimeError, MemoryError, OSError, OverflowError) as error:
            size = num_blocks * self._shape.block_bytes / 2**30
            raise ValueError(
                f"{name} of {num_blocks} blocks ({size:.1f} GiB) does not fit into memory."
            ) from error


def _cutter(model: Model, *, invariant: bool) -> TileCutter | None:
    """Return how attention is cut, where Triton computes layers of our own."""
    config = model.config
    if not isinstance(config, DecoderConfig) or not uses_triton(model.device):
        return None
    return TileCutter(
        kv_heads=config.num_kv_heads,
        group=config.num_heads // config.num_kv_heads,
        head_dim=config.head_dim,
        processors=num_processors(model.device),
        invariant=invariant,
    )


def _products(config: EngineConfig, model: Model) -> str:
    """Name who multiplies the matrices of layers."""
    if model.device.type == "cpu":
        return backend(model.dtype)
    return "triton" if config.deterministic or config.quantization != "none" else "torch"


def _longest(config: EngineConfig, model: Model) -> int:
    trained = model.config.max_positions
    wanted = config.max_model_len or trained
    if wanted > trained:
        raise ValueError(f"max_model_len is {wanted}, but the model was made for {trained} tokens.")
    return wanted


def _token_seconds(runner: ModelRunner, model: Model) -> float:
    return token_seconds(
        # to the host, so that an asynchronous device has finished
        lambda plan: runner.logits(plan).cpu(),
        num_blocks=runner.cache.num_blocks,
        block_size=runner.cache.shape.block_size,
        longest=model.config.max_positions,
        # few take a device that works beside the host as long as many do
        tokens=MOST_BUDGET if model.device.type == "cuda" else FEW_TOKENS,
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
    if not 0 < config.gpu_memory_utilization <= 1:
        raise ValueError(
            f"gpu_memory_utilization is {config.gpu_memory_utilization}, not above 0 and at most 1."
        )
