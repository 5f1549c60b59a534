"""What is left of the service when more is asked than it can do: `make bench-overload`.

Requests arrive by chance at multiples of what the service serves when it is never idle. Goodput
counts the tokens of requests that came whole and had their first token in time. A refusal is timed
at the client, which runs with a higher priority, as is /health.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parent))
import arrivals
import servers
from machine import heading

LOADS = (0.5, 1.0, 1.5, 2.0, 5.0, 10.0)  # times what is served at most
TARGET_MS = 3000.0  # for the first token
OPTIONS = (
    *("--max-num-seqs", "32", "--max-num-queued-reqs", "64"),
    *("--policy", "gate=ttft-target:default_s=2"),  # the rest is for prefills
)


def ask(port: int, rate: float, seconds: float, seed: int) -> dict[str, Any]:
    """What clients saw."""
    arguments = map(str, (port, rate, seconds, seed))
    command = (sys.executable, "-P", arrivals.__file__, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def figures(seen: dict[str, Any]) -> dict[str, Any]:
    """Of one load."""
    served = np.array(seen["served_ms"])
    in_time = int((served <= TARGET_MS).sum())
    return {
        "served": len(served),
        "refused": len(seen["refused_ms"]),
        "cut": seen["cut"],
        "other": seen["other"],
        "goodput_tok_s": round(in_time * arrivals.TOKENS / seen["seconds"], 1),
        "ttft_p99_ms": _percentile(seen["served_ms"], 99),
        "refusal_p50_ms": _percentile(seen["refused_ms"], 50),
        "refusal_p99_ms": _percentile(seen["refused_ms"], 99),
        "health_p99_ms": _percentile(seen["health_ms"], 99),
    }


def _percentile(times_ms: list[float], share: float) -> float | None:
    return round(float(np.percentile(times_ms, share)), 2) if times_ms else None


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of arrivals at each load")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(heading())
    launch = servers.ours(Path("demo"), "cadenza", OPTIONS)
    port = launch.port
    with servers.running(launch):
        ask(port, 0.0, given.seconds / 3, given.seed)
        most = ask(port, 0.0, given.seconds, given.seed)
        capacity = len(most["served_ms"]) / most["seconds"]
        loads: dict[str, Any] = {"busy": figures(most)}
        print(f"{capacity:.1f} requests a second of {arrivals.TOKENS} tokens when never idle")
        for load in LOADS:
            seen = ask(port, load * capacity, given.seconds, given.seed)
            loads[f"{load:g}x"] = figures(seen)
            print(f"{load:4g}x {json.dumps(loads[f'{load:g}x'])}", flush=True)
            time.sleep(1.0)
    peak = max(each["goodput_tok_s"] for each in loads.values())
    told = {
        "goodput_at_5x_of_peak": round(loads["5x"]["goodput_tok_s"] / peak, 3),
        "refusal_p99_ms_at_5x": loads["5x"]["refusal_p99_ms"],
        "health_p99_ms_at_10x": loads["10x"]["health_p99_ms"],
        "cut": sum(each["cut"] for each in loads.values()),
    }
    print(json.dumps({"overload": told, "loads": loads}))


if __name__ == "__main__":
    main()
