"""Puts an engine together: runner, scheduler, policies, loop."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import structlog

from cadenza.engine.channel import Channel
from cadenza.engine.loop import EngineLoop
from cadenza.engine.patience import Patience
from cadenza.engine.policies import EnginePolicies
from cadenza.engine.startup import RunnerFacts, build_runner
from cadenza.engine.step_log import LoggedRunner
from cadenza.policies.blame import Blame
from cadenza.policies.hook_guard import HookGuard
from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.costs import CostModel
from cadenza.scheduler.plan import Runner
from cadenza.scheduler.scheduler import Scheduler
from cadenza.wire.messages import EngineConfig, Progress, Ready, Sampling, Submit

_log = structlog.get_logger(__name__)


def build_engine(
    channel: Channel,
    config: EngineConfig,
    guard: HookGuard | None = None,
    blame: Blame | None = None,
) -> EngineLoop:
    """Load everything, tell the front process that the engine is ready, and return its loop.

    `guard` ends hook calls that take too long, `blame` tells others of the call under way.

    Raises:
        CheckpointError: the model cannot be used.
        ProfileError: the profile cannot be used, or a plugin cannot.
        ValueError: settings that contradict each other or the model.
    """
    policies = EnginePolicies(config.policies, guard=guard, blame=blame)
    policies.restore(config.policy_faults, config.hook_uses)
    submits: dict[int, Submit] = {}

    def progress(stage: str, done: int, total: int) -> None:
        channel.send(Progress(stage, done, total))

    runner, facts = build_runner(config, partial(settings_of, submits), progress)
    if facts.device == "cpu" and not facts.products.startswith("native"):
        _log.warning(
            "no C++ kernels: they were not compiled when the package was installed, as without a"
            " C++ compiler, or cannot be loaded; matrix products are slower",
            products=facts.products,
        )
    if facts.layers == "transformers":
        _log.warning(
            "this model's layers are run by transformers over the paged cache: slower than those of"
            " the families that have layers of our own"
        )
    limits = _limits(config, facts)
    costs = CostModel(token_s=facts.token_s, copy_block_s=facts.copy_block_s)
    scheduler = Scheduler(limits, policies.decisions, costs)
    if config.policies.watermark is not None:
        scheduler.leave_free(config.policies.watermark)
    channel.send(_ready(facts, limits))
    patience = Patience(costs, compiles=facts.device != "cpu")
    logged = _logged(runner, config, facts, limits)
    return EngineLoop(channel, scheduler, logged, submits, policies, patience=patience)


def settings_of(submits: Mapping[int, Submit], request: int) -> tuple[Sampling, int]:
    """The sampling settings of a live row, and which choice it is."""
    submit = submits[request]
    return submit.sampling, submit.choice + request - submit.request


def _logged(
    runner: Runner, config: EngineConfig, facts: RunnerFacts, limits: SchedulerConfig
) -> Runner:
    """The runner, logged if that is wanted and can be."""
    if config.step_log is None:
        return runner
    try:
        path, goes_on = Path(config.step_log), config.step_log_goes_on
        return LoggedRunner(runner, path, limits, facts.device, goes_on=goes_on)
    except OSError as error:
        _log.error("no step log", path=config.step_log, reason=error.strerror)
        return runner


def _limits(config: EngineConfig, facts: RunnerFacts) -> SchedulerConfig:
    """A calibrated token budget grows with the number of seats; one that was asked for does not.

    Raises:
        ValueError: limits that contradict each other.
    """
    # So much for prefills is left when every seat decodes
    calibrated = max(facts.max_num_batched_tokens, facts.max_num_seqs + 4 * facts.block_size)
    return SchedulerConfig(
        num_blocks=facts.num_blocks,
        block_size=facts.block_size,
        max_model_len=facts.max_model_len,
        max_num_seqs=facts.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens or calibrated,
        eos_token_ids=frozenset(facts.eos_token_ids),
        enable_prefix_caching=config.enable_prefix_caching,
        watermark=config.watermark,
        num_host_blocks=facts.num_host_blocks,
        max_preemptions=config.max_preemptions,
    )


def _ready(facts: RunnerFacts, limits: SchedulerConfig) -> Ready:
    return Ready(
        max_model_len=limits.max_model_len,
        vocab_size=facts.vocab_size,
        eos_token_ids=facts.eos_token_ids,
        num_blocks=limits.num_blocks,
        num_host_blocks=limits.num_host_blocks,
        block_size=limits.block_size,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        device=facts.device,
        dtype=facts.dtype,
        load_s=facts.load_s,
        sampling=facts.sampling,
        quantization=facts.quantization,
    )
