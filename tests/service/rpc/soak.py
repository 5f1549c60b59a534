"""Random and hostile calls for ever: `make soak-grpc`, or `make soak-grpc SEED=17` to begin there.

Prints a line now and then. The first call that goes wrong ends it, with its seed.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter

import uvloop

from tests.service.rpc.fuzzing import fuzz

CALLS = 2000  # by one service


def soak(first_seed: int) -> None:
    """Fuzz one service after another. Raises AssertionError; a note names the seed."""
    seen: Counter[str] = Counter()
    for seed in itertools.count(first_seed, CALLS):
        seen += uvloop.run(fuzz(seed, CALLS))
        sys.stdout.write(
            f"{seed + CALLS - first_seed} calls, the last {seed + CALLS - 1}: {dict(seen)}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    try:
        soak(int(sys.argv[1]) if len(sys.argv) > 1 else time.time_ns() // 1_000_000)
    except KeyboardInterrupt:
        sys.stdout.write("stopped\n")
