"""`cadenza simulate`: from profiles to runs, and to what is told of them."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cadenza.cli.errors import UsageError
from cadenza.cli.options import PolicyOptions
from cadenza.cli.output import write
from cadenza.cli.profile import Configured, configure
from cadenza.cli.progress import Progress
from cadenza.cli.simulation_load import limits_of, measured_of, traces_of
from cadenza.cli.simulation_options import SimulateOptions
from cadenza.policies.errors import ProfileError
from cadenza.policies.presets import PRESETS
from cadenza.scheduler.config import SchedulerConfig
from cadenza.simulator.engine import VirtualEngine
from cadenza.simulator.errors import SimulatorError
from cadenza.simulator.machines import machine_of
from cadenza.simulator.page import page
from cadenza.simulator.run import Run
from cadenza.simulator.series import joined
from cadenza.simulator.simulation import Simulation
from cadenza.simulator.study import Study, report
from cadenza.simulator.summary import Targets
from cadenza.simulator.table import table
from cadenza.simulator.trace import Trace
from cadenza.wire import messages
from cadenza.wire.logging import configure_logging

_INTERRUPTED = 130  # as from a program that Ctrl-C ends


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
    try:
        _check_places(options)
        _run(source, options)
    except SimulatorError as error:
        raise UsageError(str(error)) from error
    except MemoryError as error:
        raise UsageError("these limits take more memory than there is") from error
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _run(source: str, options: SimulateOptions) -> None:
    contenders = _contenders(options)
    for contender in contenders:
        contender.build()  # all of them, before any runs for minutes
    traces, machine = traces_of(source, options), machine_of(options.machine)
    study = Study(
        trace=traces[0],
        machine=machine,
        targets=Targets(ttft_s=options.ttft_target, tpot_s=options.tpot_target),
        seed=options.seed,
        seeds=options.seeds,
        measured=measured_of(traces, options),
        max_tokens=options.max_tokens,
    )
    limits = limits_of(options, traces, machine)
    runs = [_simulate(contender, traces, study, limits, options) for contender in contenders]
    told = report(runs, study)
    write(table(told))
    _write_file(options.json, lambda: json.dumps(told, indent=1, allow_nan=False) + "\n")
    _write_file(options.html, lambda: page(told, runs, study.targets))


def _contenders(options: SimulateOptions) -> list[Contender]:
    folder, names = options.plugins_dir, _names(options)
    found = [
        Contender(
            name=name,
            flags=PolicyOptions(policy_file=Path(given), plugins_dir=folder)
            if _is_file(given)
            else PolicyOptions(scheduling_policy=given, plugins_dir=folder),
        )
        for given, name in names.items()
    ]
    if options.policy:
        flags = PolicyOptions(policy=options.policy, plugins_dir=folder)
        found.append(Contender(name=" ".join(options.policy), flags=flags))
    return found


def _names(options: SimulateOptions) -> dict[str, str]:
    """What each profile is called, by how it was given."""
    given = options.profile or (() if options.policy else ("fcfs",))
    short = {each: Path(each).stem if _is_file(each) else each for each in given}
    times = Counter(short.values())
    return {each: name if times[name] == 1 else each for each, name in short.items()}


def _is_file(profile: str) -> bool:
    return profile not in PRESETS and Path(profile).suffix == ".toml"


def _simulate(
    contender: Contender,
    traces: Sequence[Trace],
    study: Study,
    limits: SchedulerConfig,
    options: SimulateOptions,
) -> Run:
    """All seeds, with fresh policies for each."""
    progress, total = Progress(sys.stderr), sum(len(trace.requests) for trace in traces)
    runs, before = [], 0
    try:
        for trace in traces:
            progress.show(messages.Progress(contender.name, before, total))
            simulation = _simulation(contender, trace, study, limits, options)
            show = partial(_show, progress, contender.name, before, total)
            runs.append(simulation.run(show))
            before += len(trace.requests)
    finally:
        progress.done()
    return joined(runs)


def _show(progress: Progress, name: str, before: int, total: int, done: int) -> None:
    progress.show(messages.Progress(name, before + done, total))


def _simulation(
    contender: Contender,
    trace: Trace,
    study: Study,
    limits: SchedulerConfig,
    options: SimulateOptions,
) -> Simulation:
    configured = contender.build()
    if options.watermark is None and configured.config.watermark is not None:
        limits = replace(limits, watermark=configured.config.watermark)
    return Simulation(
        contender.name,
        trace,
        limits,
        configured.profile,
        VirtualEngine(study.machine, limits.block_size),
        max_tokens=study.max_tokens,
        measured=study.measured,
    )


def _check_places(options: SimulateOptions) -> None:
    """Before anything runs for minutes."""
    if options.json is not None and options.json == options.html:
        raise UsageError(f"{options.json} cannot be both, --json and --html")
    for path in (options.json, options.html):
        if path is None:
            continue
        folder = path.absolute().parent
        if path.is_dir() or not folder.is_dir():
            raise UsageError(f"{path} cannot be written: there is no such folder, or it is one")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise UsageError(f"{path} cannot be written: Permission denied")


def _write_file(path: Path | None, content: Callable[[], str]) -> None:
    if path is None:
        return
    try:
        # Names from outside need be no text that there is
        path.write_text(content(), encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
