"""The options of `cadenza simulate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import NonNegativeInt, PositiveFloat, PositiveInt

Profiles = Parameter(group="Profiles")
Trace = Parameter(group="Trace")
Machine = Parameter(group="Machine")
Report = Parameter(group="Report")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """What is tried, on what, and what is told of it."""

    profile: Annotated[tuple[str, ...], Profiles, Parameter(negative=())] = ()
    """A preset such as fair-share, or a profile in TOML; several are compared with the first."""

    policy: Annotated[tuple[str, ...], Profiles, Parameter(negative=())] = ()
    """DECISION=POLICY or DECISION=POLICY:key=value,...; together one more profile."""

    plugins_dir: Annotated[Path | None, Profiles] = None
    """A folder whose Python files hold policies."""

    window: Annotated[str | None, Trace] = None
    """BEGIN:END in seconds of the trace; either may be left out."""

    first: Annotated[PositiveInt | None, Trace] = None
    """Take so many requests at most."""

    stretch: Annotated[PositiveFloat, Trace] = 1.0
    """Let all times be so many times as long, after the window is cut."""

    jitter: Annotated[bool, Trace, Parameter(negative=())] = False
    """Spread arrivals at the same time up to the next ones, as traces with coarse clocks need."""

    max_tokens: Annotated[NonNegativeInt, Trace] = 0
    """That requests ask for where the trace does not say it; 0: exactly what they get."""

    machine: Annotated[str, Machine] = "rtx-4090-llama-3.1-8b"
    """A known machine, a file of `cadenza calibrate`, or roofline:DEVICE,params=...,layers=..."""

    like: Annotated[str | None, Machine] = None
    """HTTP address of a running service: take its limits, where flags give no others."""

    num_blocks: Annotated[PositiveInt | None, Machine] = None
    """KV blocks in the pool; default: as measured on that machine, where it was."""

    num_host_blocks: Annotated[NonNegativeInt | None, Machine] = None
    """KV blocks on the host for preempted requests; default: 0, they are recomputed."""

    block_size: Annotated[PositiveInt | None, Machine] = None
    """Tokens a KV block holds; default: 16."""

    max_num_seqs: Annotated[PositiveInt | None, Machine] = None
    """Requests that may run at once; default: 256."""

    max_num_batched_tokens: Annotated[PositiveInt | None, Machine] = None
    """Tokens a step computes at most; default: 2048."""

    max_model_len: Annotated[PositiveInt | None, Machine] = None
    """Prompt and output tokens of a request at most; default: what the longest one takes."""

    enable_prefix_caching: Annotated[bool, Machine] = True
    """Share the KV blocks of equal prefixes."""

    watermark: Annotated[float | None, Machine] = None
    """Share of the pool that admissions leave free; default: 0.01, or what the preset wants."""

    measure: Annotated[str | None, Report] = None
    """BEGIN:END in seconds of what is replayed: figures are of this while alone."""

    ttft_target: Annotated[PositiveFloat, Report] = 2.0
    """Seconds to the first token that count as good, for requests that say nothing themselves."""

    tpot_target: Annotated[PositiveFloat, Report] = 0.1
    """Seconds between tokens, the same."""

    seed: Annotated[NonNegativeInt, Report] = 0
    """Of made-up traces, of jitter, and of intervals."""

    seeds: Annotated[PositiveInt, Report] = 1
    """Repeat made-up traces, or jitter, with so many seeds from `seed` on, and draw from these."""

    json: Annotated[Path | None, Report] = None
    """Write all figures into this file."""

    html: Annotated[Path | None, Report] = None
    """Write a page with plots into this file; it needs nothing else to be shown."""
