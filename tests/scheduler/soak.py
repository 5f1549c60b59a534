"""Random lives of the scheduler for half an hour or more: `make soak`, or `make soak SEED=17`.

Each life draws its disturbances by weight from its seed. The first that goes wrong ends the soak,
and tells its seed. Before them two planted leaks, of blocks and of memory, have to be noticed. The
last line is one JSON object, and the exit status 1 if blocks have leaked; an operation is a block
that a pool hands out, pins or takes back.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cadenza.scheduler.blocks import BlockPool
from cadenza.scheduler.prefix_index import Blocks
from tests.scheduler.random_lives import RandomLife, lives

SECONDS, OPERATIONS = 1800.0, 2_000_000
REPORT_S = 30.0
WARM_UP_OPERATIONS = 100_000  # before memory is looked at for the first time
LEAK_EVERY = 100  # releases of which one loses a block
LEAK_PATIENCE = 20_000  # operations within which that has to be noticed
PLANTED_MB = 64


Method = Callable[..., Any]


class LeakUnnoticed(Exception):
    """A planted leak was not seen, so that nothing follows from seeing none."""


def soak(first_seed: int, seconds: float, operations: int) -> dict[str, Any]:
    """Run one life after another until both bounds are passed; returns figures.

    Raises:
        AssertionError: a life went wrong; a note names its seed.
        LeakUnnoticed: the soak could not have noticed one.
    """
    controls = {
        "control_operations": operations_until_a_leak_is_noticed(first_seed),
        "control_rss_mb": round(growth_of_planted_memory(), 1),
    }
    seen: Counter[str] = Counter()
    started_s = reported_s = time.monotonic()
    warm_up, warm_mb = min(WARM_UP_OPERATIONS, operations // 2), 0.0
    operations_done = Operations()
    for life in operations_done.during(lives(first_seed)):
        seen += count(life)
        now_s = time.monotonic()
        if not warm_mb and operations_done.count >= warm_up:
            warm_mb = rss_mb()
        if now_s - reported_s > REPORT_S:
            reported_s = now_s
            say(f"{operations_done.count} operations in {now_s - started_s:.0f} s, {life.name}")
        if now_s - started_s > seconds and operations_done.count >= operations:
            break
    return {
        "operations": operations_done.count,
        "leaked_blocks": seen.pop("leaked_blocks", 0),
        "rss_growth_mb": round(rss_mb() - warm_mb, 1),
        **controls,
        "seconds": round(time.monotonic() - started_s),
        "first_seed": first_seed,
        **seen,
    }


def count(life: RandomLife) -> Counter[str]:
    """What happened in a life that has come to its end, and what it left behind."""
    figures = life.driver.scheduler.statistics()
    device = figures.total_blocks - figures.free_blocks - figures.cached_blocks
    host = figures.total_host_blocks - figures.free_host_blocks
    seen = Counter(life.histories.seen)
    seen["lives"] = 1
    seen["steps"] = figures.steps
    seen["leaked_blocks"] = device + host
    return seen


class Operations:
    """Counts blocks that pools hand out, pin and take back."""

    def __init__(self) -> None:
        self.count = 0

    def during(self, items: Iterable[RandomLife]) -> Iterator[RandomLife]:
        """The same items; counted is what happens until the last, or until nobody asks further."""
        with ExitStack() as patched:
            for name in ("allocate", "pin", "release"):
                patched.enter_context(replaced(name, self._counting))
            yield from items

    def _counting(self, method: Method) -> Method:
        def counting(pool: BlockPool, *arguments: Any) -> Any:
            for blocks in arguments:
                self.count += blocks if isinstance(blocks, int) else len(blocks)
            return method(pool, *arguments)

        return counting


def operations_until_a_leak_is_noticed(first_seed: int) -> int:
    """Operations until a planted leak is noticed."""
    operations = Operations()
    with replaced("release", leaking):
        try:
            for life in operations.during(lives(first_seed)):
                if count(life)["leaked_blocks"]:
                    return operations.count
                if operations.count > LEAK_PATIENCE:
                    break
        except AssertionError:
            return operations.count
    raise LeakUnnoticed(f"a block lost in one of {LEAK_EVERY} releases is not noticed")


def leaking(release: Method) -> Method:
    """A release of which one in LEAK_EVERY forgets a block that it should give back."""
    num_releases = 0

    def losing(pool: BlockPool, *tables: Blocks) -> None:
        nonlocal num_releases
        num_releases += 1
        if num_releases % LEAK_EVERY == 0 and tables:
            tables = (*tables[:-1], tables[-1][:-1])
        release(pool, *tables)

    return losing


@contextmanager
def replaced(name: str, by: Callable[[Method], Method]) -> Iterator[None]:
    """Meanwhile every pool's method is what `by` makes of it."""
    method = getattr(BlockPool, name)
    setattr(BlockPool, name, by(method))
    try:
        yield
    finally:
        setattr(BlockPool, name, method)


def growth_of_planted_memory() -> float:
    """MiB by which `rss_mb` rises for PLANTED_MB that are held."""
    before = rss_mb()
    # Not `bytes`: malloc would give out again what it has kept of this process's past.
    with mmap.mmap(-1, PLANTED_MB << 20) as held:
        held.write(b"x" * len(held))
        growth = rss_mb() - before
    if growth < 0.9 * PLANTED_MB:
        raise LeakUnnoticed(f"{PLANTED_MB} MiB held look like {growth:.1f} MiB")
    return growth


def rss_mb() -> float:
    """Resident memory of this process in MiB, once garbage is collected."""
    gc.collect()
    [line] = [
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line
    ]
    return int(line.split()[1]) / 1024


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=time.time_ns() // 1_000_000)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="at least")
    parser.add_argument("--operations", type=int, default=OPERATIONS, help="at least")
    given = parser.parse_args()
    figures = soak(given.seed, given.seconds, given.operations)
    say(json.dumps(figures))
    return 1 if figures["leaked_blocks"] else 0


if __name__ == "__main__":
    sys.exit(main())
