"""Lives of the service: `make simulate SEED=17` is that one, `make simulate` new ones for ever.

A second argument is how many to live, from the seed on. The first that goes wrong ends it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from itertools import count

from .life import live

_REPORT_S = 30.0


def main(arguments: Sequence[str]) -> None:
    """Raises what goes wrong, with a note that names the seed."""
    if not all(each.isdecimal() for each in arguments) or len(arguments) > 2:
        raise SystemExit(f"simulation: expected SEED [NUMBER], got {' '.join(arguments)!r}")
    numbers = [int(each) for each in arguments]
    seeds: Iterable[int] = count(time.time_ns() // 1_000_000)
    if numbers:
        num_seeds = numbers[1] if len(numbers) > 1 else 1
        seeds = range(numbers[0], numbers[0] + num_seeds)
    began_s = reported_s = time.perf_counter()
    num_lives, virtual_s = 0, 0.0
    for seed in seeds:
        virtual_s += live(seed).elapsed_s
        num_lives += 1
        now_s = time.perf_counter()
        if now_s - reported_s > _REPORT_S:
            reported_s = now_s
            _say(f"{num_lives} lives in {now_s - began_s:.0f} s, the last of seed {seed}")
    took_s = time.perf_counter() - began_s
    _say(f"{num_lives} lives of {virtual_s:.0f} s together, in {took_s:.1f} s: nothing went wrong")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        _say("stopped")
