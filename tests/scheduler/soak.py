"""Random lives of the scheduler for ever: `make soak`, or `make soak SEED=17` to begin there.

Prints a line now and then. The first life that goes wrong ends it, with its seed. Two more
arguments bound the seconds and the steps; then the last line is what was seen, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter

from tests.scheduler.random_lives import lives

REPORT_S = 30.0


def soak(first_seed: int, seconds: float, steps: float) -> Counter[str]:
    """Run one life after another until a bound is reached; returns counts of what was seen.

    Raises:
        AssertionError: a life went wrong; a note names its seed.
    """
    seen: Counter[str] = Counter()
    started_s = reported_s = time.monotonic()
    for life in lives(first_seed):
        seen += life.histories.seen
        seen["steps"] += life.driver.scheduler.statistics().steps
        now_s = time.monotonic()
        if now_s - reported_s > REPORT_S:
            reported_s = now_s
            say(f"{seen['steps']} steps in {now_s - started_s:.0f} s, {life.name} the last")
        if now_s - started_s > seconds or seen["steps"] >= steps:
            break
    return seen


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else time.time_ns() // 1_000_000
    bounds = [float(bound) for bound in sys.argv[2:4]]
    try:
        say(json.dumps(soak(seed, *(bounds or (float("inf"), float("inf"))))))
    except KeyboardInterrupt:
        say("stopped")
