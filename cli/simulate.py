"""`cadenza simulate`: from flags to traces, limits, profiles and reports."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cadenza.cli.errors import UsageError
from cadenza.cli.options import PolicyOptions, ServerOptions
from cadenza.cli.output import write
from cadenza.cli.profile import Configured, configure
from cadenza.cli.progress import Progress
from cadenza.cli.service_client import ServiceClient
from cadenza.cli.simulation_options import SimulateOptions
from cadenza.policies.errors import ProfileError
from cadenza.policies.presets import PRESETS
from cadenza.scheduler.config import SchedulerConfig
from cadenza.simulator.engine import VirtualEngine
from cadenza.simulator.errors import SimulatorError
from cadenza.simulator.machines import LIMITS, Machine, check_limits, machine_of
from cadenza.simulator.page import page
from cadenza.simulator.readers import read_trace
from cadenza.simulator.run import Run
from cadenza.simulator.simulation import EOS, Simulation
from cadenza.simulator.study import report
from cadenza.simulator.summary import Targets
from cadenza.simulator.synthetic import PREFIX, shape_of, synthetic
from cadenza.simulator.table import table
from cadenza.simulator.trace import Trace
from cadenza.wire import messages
from cadenza.wire.logging import configure_logging

_WATERMARK = 0.01
_DEFAULTS = {
    "block_size": 16,
    "num_host_blocks": 0,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A profile under its name; `build` makes a fresh one."""

    name: str
    flags: PolicyOptions

    def build(self) -> Configured:
        """Raises UsageError for a profile that a service would refuse."""
        try:
            return configure(self.flags)
        except ProfileError as error:
            raise UsageError(str(error)) from error


def run(source: str, options: SimulateOptions) -> int:
    """Simulate, and tell of it; 0, or 130 after Ctrl-C.

    Raises:
        UsageError: something that was given cannot be used, or a file cannot be written.
    """
    configure_logging("warning")  # what policies do wrong goes to standard error
    for path in (options.json, options.html):
        _check_place(path)
    contenders = _contenders(options)
    built = [each.build() for each in contenders]  # all of them, before any runs for minutes
    try:
        trace, machine = _trace(source, options), machine_of(options.machine)
        limits = _limits(options, trace, machine)
        runs = [
            _simulate(contender, configured, trace, machine, limits, options)
            for contender, configured in zip(contenders, built, strict=True)
        ]
    except SimulatorError as error:
        raise UsageError(str(error)) from error
    except MemoryError as error:
        raise UsageError("these limits take more memory than there is") from error
    except KeyboardInterrupt:
        return 130  # as from a program that Ctrl-C ends
    targets = Targets(ttft_s=options.ttft_target, tpot_s=options.tpot_target)
    told = report(runs, machine, targets, seed=options.seed, max_tokens=options.max_tokens)
    write(table(told))
    _write_file(options.json, lambda: json.dumps(told, indent=1, allow_nan=False) + "\n")
    _write_file(options.html, lambda: page(told, runs, targets))
    return 0


def _contenders(options: SimulateOptions) -> list[Contender]:
    found = [_contender(name, options) for name in dict.fromkeys(options.profile)]
    if options.policy:
        flags = PolicyOptions(policy=options.policy, plugins_dir=options.plugins_dir)
        found.append(Contender(name=" ".join(options.policy), flags=flags))
    return found or [_contender("fcfs", options)]


def _contender(name: str, options: SimulateOptions) -> Contender:
    folder = options.plugins_dir
    if name not in PRESETS and Path(name).suffix == ".toml":
        flags = PolicyOptions(policy_file=Path(name), plugins_dir=folder)
        return Contender(name=Path(name).stem, flags=flags)
    return Contender(name=name, flags=PolicyOptions(scheduling_policy=name, plugins_dir=folder))


def _trace(source: str, options: SimulateOptions) -> Trace:
    if source.startswith(PREFIX):
        trace = synthetic(shape_of(source.removeprefix(PREFIX)), options.seed)
    else:
        trace = read_trace(Path(source))
    if options.jitter:
        trace = trace.jittered(options.seed)
    if options.window is not None:
        trace = trace.window(*_window(options.window))
    if options.first is not None:
        trace = trace.first(options.first)
    if options.stretch != 1:
        trace = trace.stretched(options.stretch)
    return trace


def _window(text: str) -> tuple[float, float]:
    begin, colon, end = text.partition(":")
    try:
        window = float(begin or 0), float(end or math.inf)
    except ValueError:
        window = (math.nan, math.nan)
    if not colon or not window[0] < window[1]:
        raise UsageError(f"--window {text} is not of the form BEGIN:END, in seconds")
    return window


def _limits(options: SimulateOptions, trace: Trace, machine: Machine) -> SchedulerConfig:
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
    longest = max(
        each.prompt_tokens + max(each.output_tokens, each.max_tokens, options.max_tokens)
        for each in trace.requests
    )
    if options.max_model_len is None:
        pool = known["num_blocks"] * known["block_size"]
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


def _served(url: str) -> dict[str, int]:
    """The limits of a running service."""
    return ServiceClient(ServerOptions(server=url), as_administrator=False).limits()


def _simulate(
    contender: Contender,
    configured: Configured,
    trace: Trace,
    machine: Machine,
    limits: SchedulerConfig,
    options: SimulateOptions,
) -> Run:
    if options.watermark is None and configured.config.watermark is not None:
        limits = replace(limits, watermark=configured.config.watermark)
    simulation = Simulation(
        contender.name,
        trace,
        limits,
        configured.profile,
        VirtualEngine(machine, limits.block_size),
        max_tokens=options.max_tokens,
    )
    progress, num = Progress(sys.stderr), len(trace.requests)

    def show(done: int) -> None:
        progress.show(messages.Progress(contender.name, done, num))

    show(0)
    try:
        return simulation.run(show)
    finally:
        progress.done()


def _check_place(path: Path | None) -> None:
    """Before anything runs for minutes."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise UsageError(f"{path} cannot be written: there is no such folder, or it is one")


def _write_file(path: Path | None, content: Callable[[], str]) -> None:
    if path is None:
        return
    try:
        # Names from outside need be no text that there is
        path.write_text(content(), encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
