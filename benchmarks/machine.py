"""What every benchmark says first: where, when and how its figures came about."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path


def heading() -> str:
    """Lines with the machine, the date and the command."""
    command = " ".join(("python -P", *sys.argv))
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    load = ", ".join(f"{share:.1f}" for share in os.getloadavg())
    return (
        f"machine  {_cpu_model()}, {len(os.sched_getaffinity(0))} cores (load {load})\n"
        f"date     {now}\n"
        f"command  {command}\n"
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
