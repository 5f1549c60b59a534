"""Random and hostile calls: `make soak-grpc`, with SEED=17 to begin there, MINUTES=10 to end then.

Prints a line now and then, and what came of it at the end. The first call that goes wrong ends it,
with its seed and status 1.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter

import uvloop

from cadenza.wire.logging import configure_logging
from tests.service.rpc.fuzzing import fuzz

CALLS = 2000  # by one service


class Soak:
    """Services that are fuzzed one after another."""

    def __init__(self, first_seed: int) -> None:
        self._first_seed = first_seed
        self._num_calls = 0
        self._seen: Counter[str] = Counter()

    def run(self, minutes: float | None) -> None:
        """For so long, and until the service is through that runs then; None: for ever.

        Raises AssertionError; a note names the seed.
        """
        began_s = time.monotonic()
        for seed in itertools.count(self._first_seed, CALLS):
            self._seen += uvloop.run(fuzz(seed, CALLS))
            self._num_calls += CALLS
            if minutes is not None and time.monotonic() - began_s >= 60 * minutes:
                return
            say(f"{self._num_calls} calls, the last {seed + CALLS - 1}")

    def tell(self, end: str) -> None:
        """The last lines: what was seen, and how it ended."""
        say(f"seen: {dict(sorted(self._seen.items()))}")
        say(
            f"{end}: {self._num_calls} calls from seed {self._first_seed} on were as they should be"
        )


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1_000_000)
    parser.add_argument("--minutes", type=float, help="else for ever")
    options = parser.parse_args()
    configure_logging("error")  # of thousands of calls, most of which are refused
    soak = Soak(options.seed)
    try:
        soak.run(options.minutes)
    except KeyboardInterrupt:
        soak.tell("stopped")
    except BaseException:
        soak.tell("FAILED in the next service")
        raise
    else:
        soak.tell("done")


if __name__ == "__main__":
    main()
