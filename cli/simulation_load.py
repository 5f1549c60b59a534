"""From the options of `cadenza simulate` to what comes, and to the limits that it meets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cadenza.cli.errors import UsageError
from cadenza.cli.options import ServerOptions
from cadenza.cli.service_client import ServiceClient
from cadenza.cli.simulation_options import SimulateOptions
from cadenza.scheduler.config import SchedulerConfig
from cadenza.simulator.machines import LIMITS, Machine, check_limits
from cadenza.simulator.readers import read_trace
from cadenza.simulator.simulation import EOS
from cadenza.simulator.synthetic import PREFIX, shape_of, synthetic
from cadenza.simulator.trace import WHOLE, Span, Trace

_WATERMARK = 0.01
_DEFAULTS = {
    "block_size": 16,
    "num_host_blocks": 0,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
}


def traces_of(source: str, options: SimulateOptions) -> list[Trace]:
    """A trace for each seed, cut and stretched.

    Raises:
        UsageError: an option cannot be what it is.
        SimulatorError: there is no such trace, or nothing is left of it.
    """
    is_made_up = source.startswith(PREFIX)
    if options.seeds > 1 and not (is_made_up or options.jitter):
        raise UsageError(
            f"{source} is the same with any seed: --seeds repeats made-up traces, or --jitter"
        )
    if is_made_up:
        shape = shape_of(source.removeprefix(PREFIX))
        found: Iterator[Trace] = (synthetic(shape, seed) for seed in _seeds(options))
    else:
        trace = read_trace(Path(source))
        found = (trace for _ in _seeds(options))
    pairs = zip(found, _seeds(options), strict=True)
    return [_changed(trace, options, seed) for trace, seed in pairs]


def measured_of(traces: Sequence[Trace], options: SimulateOptions) -> Span:
    """The while of every trace that figures are of.

    Raises:
        UsageError: it is none.
        SimulatorError: nobody arrives in it.
    """
    if options.measure is None:
        return WHOLE
    span = _span("--measure", options.measure)
    for trace in traces:
        trace.window(span)
    return span


def limits_of(
    options: SimulateOptions, traces: Sequence[Trace], machine: Machine
) -> SchedulerConfig:
    """Those of flags, a running service, the machine, or else usual ones; memory is not guessed.

    Raises:
        UsageError: nobody says how many blocks there are, or limits contradict each other.
        SimulatorError: one of them is too large.
    """
    served = {} if options.like is None else _served(options.like)
    flags = {name: getattr(options, name) for name in LIMITS}
    given = {name: value for name, value in flags.items() if value is not None}
    known: dict[str, Any] = {**_DEFAULTS, **machine.limits, **served}
    if "block_size" in given and "num_blocks" in known:  # in as much memory
        known["num_blocks"] = known["num_blocks"] * known["block_size"] // given["block_size"]
    known |= given
    if "num_blocks" not in known:
        raise UsageError(
            f"nobody knows how many KV blocks {machine.name} has: --num-blocks, or --like with the "
            "address of a running service, says it. Results depend on it more than on policies"
        )
    check_limits(known)
    if options.max_model_len is None:
        pool = known["num_blocks"] * known["block_size"]
        longest = max(_longest(trace, options.max_tokens) for trace in traces)
        known["max_model_len"] = min(known.get("max_model_len", longest), pool)
    try:
        return SchedulerConfig(
            **known,
            eos_token_ids=frozenset({EOS}),
            enable_prefix_caching=options.enable_prefix_caching,
            watermark=_WATERMARK if options.watermark is None else options.watermark,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def _seeds(options: SimulateOptions) -> range:
    return range(options.seed, options.seed + options.seeds)


def _changed(trace: Trace, options: SimulateOptions, seed: int) -> Trace:
    if options.jitter:
        trace = trace.jittered(seed)
    if options.window is not None:
        trace = trace.window(_span("--window", options.window))
    if options.first is not None:
        trace = trace.first(options.first)
    if options.stretch != 1:
        trace = trace.stretched(options.stretch)
    return trace


def _span(flag: str, text: str) -> Span:
    begin, colon, end = text.partition(":")
    try:
        span = Span(float(begin or 0), float(end or math.inf))
    except ValueError:
        span = Span(math.nan, math.nan)
    if not colon or not 0 <= span.begin_s < span.end_s:
        raise UsageError(f"{flag} {text} is not of the form BEGIN:END, in seconds from 0 on")
    return span


def _longest(trace: Trace, max_tokens: int) -> int:
    """Tokens that any request may come to."""
    return max(
        each.prompt_tokens + max(each.output_tokens, each.max_tokens, max_tokens)
        for each in trace.requests
    )


def _served(url: str) -> dict[str, int]:
    """The limits of a running service."""
    return ServiceClient(ServerOptions(server=url), as_administrator=False).limits()
