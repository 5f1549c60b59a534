"""`cadenza calibrate`: from a step log to a machine."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from cadenza.cli.errors import UsageError
from cadenza.cli.output import write, write_table
from cadenza.simulator.errors import SimulatorError
from cadenza.simulator.fitting import fit, read_log


def run(log: Path, output: Path, name: str) -> int:
    """Fit, tell, and write the machine.

    Raises:
        UsageError: the log cannot be used, or the file not be written.
    """
    try:
        found = fit(read_log(log), name)
    except SimulatorError as error:
        raise UsageError(str(error)) from error
    machine = found.machine
    try:
        output.write_text(json.dumps(machine.encoded(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror or error}") from error
    write_table(
        (each.name, f"{getattr(machine.step_time, each.name):.4g}")
        for each in dataclasses.fields(machine.step_time)
    )
    write(
        f"{found.num_steps} steps, {found.num_strays} of them left out as strays; off by "
        f"{found.error:.1%} in the mean\n{output} is for `cadenza simulate --machine`\n"
    )
    return 0
