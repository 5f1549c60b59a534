"""The model runner: executes the scheduler's plans on a loaded model.

Blocks are copied first; then one forward pass serves prefill chunks and decodes of many rows. What
the host has to tell the device goes there in one piece, and what it wants to know comes back in
one: tokens. In between nobody waits for anybody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cadenza.engine.block_copies import BlockCopier
from cadenza.engine.decode_graphs import Computed, DecodeGraphs, GraphKey
from cadenza.engine.device import Device, Span, Stream
from cadenza.engine.kv_cache import KVCache
from cadenza.engine.models import Model, ModelBatch, ProgressCallback
from cadenza.engine.prompt_scores import PromptScorer
from cadenza.engine.sampler import NOTHING_SAMPLED, Draws, Sampled, Sampler
from cadenza.engine.uploads import Array, Uploads
from cadenza.kernels.paged_attention import TileCutter
from cadenza.scheduler.plan import PromptScores, StepOutcome, StepPlan, StepTimes
from cadenza.wire.messages import Sampling

SettingsLookup: TypeAlias = Callable[[int], tuple[Sampling, int]]
"""Request id -> its sampling settings and choice index; called once for each `Seated`."""


class _Pass(NamedTuple):
    computed: Computed  # logits: [samples, vocab_size]
    others: list[Tensor]  # what was sent beside the pass's own inputs


class ModelRunner:
    """Runs plans on a model and its cache; samples from the logits."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        copier: BlockCopier,
        sampler: Sampler,
        settings: SettingsLookup,
        device: Device,
        cutter: TileCutter | None = None,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        """cutter: of the model's attention; None: the model lays it out by itself."""
        self._model = model
        self._cache = cache
        self._copier = copier
        self._sampler = sampler
        self._settings = settings
        self._device = device
        self._cutter = cutter
        self._graphs = graphs
        self._scorer = PromptScorer(model)
        self._uploads = Uploads(device, model.device)
        self._tokens = device.host_memory(4 * sampler.num_seats).view(torch.int32)

    @property
    def cache(self) -> KVCache:
        return self._cache

    @property
    def sampler(self) -> Sampler:
        return self._sampler

    @property
    def copier(self) -> BlockCopier:
        return self._copier

    def capture(self, progress: ProgressCallback) -> None:
        """Capture the passes that are replayed from now on; takes seconds on a GPU."""
        if self._graphs is not None:
            self._graphs.capture(progress)

    def capture_largest(self) -> None:
        """Capture the one that takes the most memory."""
        if self._graphs is not None:
            self._graphs.capture_largest()

    def launch(self, plan: StepPlan) -> Callable[[], StepOutcome]:
        """Copy blocks, run one forward pass, and draw the plan's samples, as `Runner` says."""
        for seated in plan.seated:
            sampling, choice = self._settings(seated.request)
            self._sampler.seat(seated, sampling, choice)
            self._scorer.seat(seated, sampling)
        if self._device.works_beside:
            return self._begun(plan)
        return lambda: self._begun(plan)()

    def execute(self, plan: StepPlan) -> StepOutcome:
        """Launch a plan, and wait for its outcome."""
        return self.launch(plan)()

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> Tensor:
        """Run the forward pass alone; logits [samples, vocab_size], fp32, in the plan's order."""
        return self._prepared(plan)().computed.logits

    def _begun(self, plan: StepPlan) -> Callable[[], StepOutcome]:
        """Give the device all that it has to do, and return what waits for it."""
        self._copier.run(plan.copies)
        if not plan.num_rows:
            return partial(self._outcome, plan, NOTHING_SAMPLED, (), 0.0)
        positions = (plan.num_context + plan.num_new)[plan.samples]
        draws = self._sampler.draws(plan.sample_seats, positions)
        run = self._prepared(plan, draws.arrays)
        tokens, done = self._tokens[: len(plan.samples)], list[Computed]()

        @torch.inference_mode()
        def work() -> None:
            computed, columns = run()
            drawn = self._sampler.draw(computed.logits, draws, columns)
            tokens.copy_(drawn, non_blocking=True)
            done.append(computed)

        span = self._device.run(Stream.COMPUTE, work)
        return partial(self._finished, plan, draws, span, done)

    @torch.inference_mode()
    def _finished(
        self, plan: StepPlan, draws: Draws, span: Span, done: Sequence[Computed]
    ) -> StepOutcome:
        """Wait for a pass, and tell what it has brought."""
        forward_s, start_s = span.wait(), time.perf_counter()
        [computed] = done
        tokens = self._tokens[: len(plan.samples)].numpy().copy()
        sampled = self._sampler.drawn(computed.logits, draws, tokens)
        scorer = self._scorer
        scores = scorer.scores(plan, computed.hidden) if scorer.is_needed else ()
        return self._outcome(plan, sampled, scores, forward_s + time.perf_counter() - start_s)

    def _outcome(
        self, plan: StepPlan, sampled: Sampled, scores: Sequence[PromptScores], forward_s: float
    ) -> StepOutcome:
        return StepOutcome(
            step_id=plan.step_id,
            tokens=sampled.tokens,
            failed=sampled.failed,
            logprobs=sampled.logprobs,
            prompt_scores=scores,
            times=StepTimes(forward_s, *self._copier.finish()),
        )

    def _prepared(self, plan: StepPlan, others: Sequence[Array] = ()) -> Callable[[], _Pass]:
        """Pack what a pass has to know, and `others`; return what sends it and computes."""
        key = self._graphs.key_of(plan) if self._graphs else None
        if self._graphs and key:
            return self._replaying(self._graphs, key, plan, others)
        return self._computing(plan, others)

    def _replaying(
        self, graphs: DecodeGraphs, key: GraphKey, plan: StepPlan, others: Sequence[Array]
    ) -> Callable[[], _Pass]:
        inputs, count = graphs.inputs(plan, key), plan.num_rows
        each_samples = np.array_equal(plan.samples, np.arange(count))
        send = self._uploads.pack([*inputs, _int64(plan.samples), *others])

        def run() -> _Pass:
            places, block_tables, samples, *rest = send()
            hidden, logits = graphs.replay(key, places, block_tables)
            logits = logits[:count] if each_samples else logits.index_select(0, samples)
            return _Pass(Computed(hidden, logits), rest)

        return run

    def _computing(self, plan: StepPlan, others: Sequence[Array]) -> Callable[[], _Pass]:
        layout = plan.layout()
        is_new = np.diff(plan.samples, prepend=-1) > 0
        last_tokens = np.cumsum(plan.num_new)[plan.samples[is_new]] - 1
        # choices that share a row: its logits once more for each
        sources = np.cumsum(is_new) - 1
        tiles = self._cutter.cut(plan.num_context, plan.num_new) if self._cutter else ()
        tiled = [layout.block_tables, *(each.columns for each in tiles)] if tiles else []
        columns = map(_int64, (*layout[:4], last_tokens, sources))
        send = self._uploads.pack([*columns, *tiled, *others])

        def run() -> _Pass:
            tokens, positions, blocks, offsets, last, source, *rest = send()
            batch = ModelBatch(
                tokens=tokens,
                positions=positions,
                blocks=blocks,
                offsets=offsets,
                num_context=plan.num_context,
                num_new=plan.num_new,
                block_tables=layout.block_tables,
                tiles=tuple(
                    each.on_device(columns, rest[0])
                    for each, columns in zip(tiles, rest[1:], strict=False)
                ),
            )
            hidden = self._model.hidden(batch, self._cache)
            logits = self._model.logits(hidden.index_select(0, last))
            if len(logits) < len(sources):
                logits = logits.index_select(0, source)
            return _Pass(Computed(hidden, logits), rest[len(tiled) :])

        return run


def _int64(array: npt.NDArray[np.integer[Any]]) -> Array:
    return np.ascontiguousarray(array, dtype=np.int64)
