"""Microseconds a step of the scheduler, beside vLLM's under the same load.

A step is everything between a forward pass and the next: the last outcome is reaped, the next step
is planned, and the frame for the front is built; with hooks, prefix caching and the default
policies. Rows stand at random places in their blocks, so that about one in sixteen fills a block in
each step. What an arrival costs, hashing its prompt included, is a row of its own.
What a runner lays out from a plan (token ids, positions, slots, gathered block tables) is on
neither side.

  steady    every row decodes one token, and none ends
  turnover  in each step one row ends and one prompt of 512 tokens is admitted
  churn     about 1 % of the rows end in each step, and prompts of 512 tokens take their seats

vLLM's side is `schedule` and `update_from_output`, in its own process. The two take turns every few
steps, so that a machine that is faster at times is so for both. The step that begins a turn finds
cold caches, because the other side has used the machine for up to half a second; such steps are a
row of their own, "first", and those between it and the measured ones are left out. The environment
says where it is: VLLM_VENV is a venv with vLLM, MODEL_DIR a model folder that it can read. The exit
status is 3 where they are missing, unless --no-peer says that only our own figures are wanted, and
0 otherwise: targets are told, not enforced.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import IO, Any, NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parent))
import scheduler_load as load
from machine import heading
from our_scheduler import Ours
from scheduler_orders import HEADER, measure_orders
from scheduler_orders import Row as OrderRow

from cadenza.wire.heap import freeze_heap

CASES = ("steady", "turnover", "churn")
SHAPES = ((256, 0), (1024, 0), (1024, 10_000))  # running, waiting
SMALL, LARGE = 256, 1024

LEAST_RATIOS = {"steady": 30, "turnover": 15, "churn": 15}  # at LARGE
MOST_US_A_ROW = 0.4

NO_PEER = 3


class Peer:
    """vLLM's scheduler, measured by a process of its own."""

    def __init__(self, process: subprocess.Popen[str], log: IO[str]) -> None:
        self._process = process
        self._log = log
        self.version: str = self._answer()["version"]

    def begin(self, case: load.Case) -> None:
        """Warm up."""
        self._ask(case)

    def measure(self) -> load.Measured:
        """One round of the case that was begun last."""
        return load.Measured(*self._ask(None))

    def _ask(self, question: load.Case | None) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise SystemExit(f"vLLM's side failed:\n{self._log.read()}")
        return json.loads(line)


@contextmanager
def running_peer(python: Path, model: Path, clock: str) -> Iterator[Peer]:
    script = Path(__file__).with_name("vllm_scheduler.py")
    # It says much while it starts and ends, of which nothing matters unless it fails
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            (python, "-P", script, model, clock),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        yield Peer(process, log)


class Spread(NamedTuple):
    """Microseconds."""

    mean: float
    median: float
    p99: float

    @classmethod
    def of(cls, took_us: list[float]) -> Spread:
        return cls(mean(took_us), *np.percentile(took_us, (50, 99)))


class Both:
    """Microseconds on both sides, gathered from several cases."""

    def __init__(self) -> None:
        self.ours_us: list[float] = []
        self.theirs_us: list[float] = []

    def extend(self, ours_us: list[float], theirs_us: list[float] | None) -> None:
        self.ours_us += ours_us
        self.theirs_us += theirs_us or []


class Row(NamedTuple):
    """One line of the table."""

    name: str
    running: int
    waiting: int
    ours: Spread
    theirs: Spread | None
    ends: float | None = None  # a step

    @property
    def ratio(self) -> float | None:
        return self.theirs.mean / self.ours.mean if self.theirs else None

    def figures(self) -> dict[str, Any]:
        return {
            "case": self.name,
            "running": self.running,
            "waiting": self.waiting,
            "us": round(self.ours.mean, 1),
            "vllm_us": round(self.theirs.mean, 1) if self.theirs else None,
            "ratio": round(self.ratio, 1) if self.ratio else None,
        }

    def __str__(self) -> str:
        def cells(spread: Spread) -> str:
            return "".join(f"{value:9,.0f}" for value in spread)

        ends = "" if self.ends is None else f"{self.ends:.2f}"
        line = f"{self.name:9}{self.running:>8,}{self.waiting:>8,}{ends:>7} {cells(self.ours)}"
        return line + (f" {cells(self.theirs)}{self.ratio:8.1f}" if self.theirs else "")


def header(*, with_peer: bool) -> str:
    spread = f"{'mean':>9}{'median':>9}{'p99':>9}"
    line = f"{'':9}{'running':>8}{'waiting':>8}{'ends':>7} {spread}"
    above = f"{'':{len(line)}} {'vLLM':>9}\n"
    return f"{above}{line} {spread}{'ratio':>8}" if with_peer else line


def take_turns(
    case: load.Case, side: load.Load, peer: Peer | None
) -> tuple[load.Measured, load.Measured | None]:
    """What all rounds took on our side, and on the peer's."""
    if peer:
        peer.begin(case)
    ours, theirs = load.Measured([], [], [], 0), load.Measured([], [], [], 0)
    for _ in range(load.STEPS // load.ROUND):
        ours = ours.and_then(side.measure())
        theirs = theirs.and_then(peer.measure()) if peer else theirs
    return ours, theirs if peer else None


def measure_shape(
    cases: tuple[str, ...], running: int, waiting: int, peer: Peer | None, clock: load.Clock
) -> Iterator[Row]:
    """A row for each case, one for the steps that begin a turn, and one for the arrivals."""
    first, arrivals = Both(), Both()
    for name in cases:
        case = load.Case(name, running, waiting)
        ours, theirs = take_turns(case, load.Load(case, Ours(running, clock)), peer)
        first.extend(ours.first_us, theirs and theirs.first_us)
        arrivals.extend(ours.arrivals_us, theirs and theirs.arrivals_us)
        yield Row(
            name,
            running,
            waiting,
            Spread.of(ours.steps_us),
            Spread.of(theirs.steps_us) if theirs else None,
            ours.ends / load.STEPS,
        )
    for name, both in (("first", first), ("arrival", arrivals)):
        if both.ours_us:
            theirs_spread = Spread.of(both.theirs_us) if both.theirs_us else None
            yield Row(name, running, waiting, Spread.of(both.ours_us), theirs_spread)


def targets(rows: list[Row]) -> Iterator[str]:
    """What is aimed at, what was measured, and whether that meets it."""

    def verdict(is_met: bool) -> str:
        return "met" if is_met else "NOT MET"

    for row in rows:
        least = LEAST_RATIOS.get(row.name)
        if row.ratio and least and row.running == LARGE:
            what = f"{row.name} {row.running:,}/{row.waiting:,}"
            yield (
                f"{what}: {row.ratio:.1f} times cheaper than vLLM, "
                f"target {least}: {verdict(row.ratio >= least)}"
            )
    means = {(row.name, row.running): row.ours.mean for row in rows if row.waiting == 0}
    for name in CASES:
        if (name, SMALL) in means and (name, LARGE) in means:
            a_row = (means[name, LARGE] - means[name, SMALL]) / (LARGE - SMALL)
            # In churn one row in a hundred ends, and what this takes is no cost of those that run
            aim = f"target under {MOST_US_A_ROW}: {verdict(a_row < MOST_US_A_ROW)}"
            aim = "rows that end and enter included" if name == "churn" else aim
            yield f"{name} from {SMALL} to {LARGE:,} rows: {a_row:.2f} us a row, {aim}"


def measure_all(options: argparse.Namespace, peer: Peer | None) -> list[Row]:
    if peer:
        print(f"What the host pays, beside vLLM {peer.version} with synchronous scheduling; its")
        print("asynchronous scheduling can hide part of this cost behind the forward pass.")
    of_what = "" if options.clock == "wall" else f" of the {options.clock}'s time"
    print(f"Microseconds{of_what} a step over {load.STEPS} steps, and an arrival.")
    print(header(with_peer=peer is not None))
    cases = (options.only,) if options.only else CASES
    rows = []
    for running, waiting in SHAPES:
        if options.running in (None, running) and options.waiting in (None, waiting):
            for row in measure_shape(cases, running, waiting, peer, load.CLOCKS[options.clock]):
                print(row, flush=True)
                rows.append(row)
    return rows


def measure_each_order(options: argparse.Namespace) -> list[OrderRow]:
    if not options.orders:
        return []
    print(HEADER)
    rows = []
    for row in measure_orders(load.CLOCKS[options.clock]):
        print(row, flush=True)
        rows.append(row)
    return rows


def show(rows: list[Row], orders: list[OrderRow]) -> None:
    for line in targets(rows):
        print(line)
    steps = [row.figures() for row in rows if row.name in CASES]
    others = {
        name: [row.figures() for row in rows if row.name == name] for name in ("first", "arrival")
    }
    each_order = [row.figures() for row in orders]
    print(json.dumps({"scheduler_step": steps, **others, "orders": each_order}))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=CASES, help="this case alone")
    parser.add_argument("--running", type=int, choices=(SMALL, LARGE), help="as many rows alone")
    parser.add_argument("--waiting", type=int, choices=(0, 10_000), help="as many waiting alone")
    parser.add_argument(
        "--orders",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="a table of every built-in order of admission, after the others",
    )
    parser.add_argument("--orders-only", action="store_true", help="that table alone; exits 0")
    parser.add_argument("--no-peer", action="store_true", help="our own figures alone; exits 0")
    parser.add_argument(
        "--clock",
        choices=load.CLOCKS,
        default="wall",
        help="thread: leave out when other processes had the core; for a machine under load",
    )
    return parser.parse_args()


def main() -> int:
    options = parse()
    freeze_heap()  # as the engine does
    print(heading())
    if options.orders_only:
        show([], measure_each_order(options))
        return 0
    if options.no_peer:
        show(measure_all(options, None), measure_each_order(options))
        return 0
    python = Path(os.environ.get("VLLM_VENV", "")) / "bin" / "python"
    model = Path(os.environ.get("MODEL_DIR", ""))
    if python.is_file() and (model / "config.json").is_file():
        with running_peer(python, model, options.clock) as peer:
            rows = measure_all(options, peer)
        show(rows, measure_each_order(options))
        return 0
    missing = "VLLM_VENV must name a venv with vLLM, and MODEL_DIR a model folder."
    print(f"No peer to compare with: {missing}", file=sys.stderr, flush=True)
    show(measure_all(options, None), measure_each_order(options))
    return NO_PEER


if __name__ == "__main__":
    sys.exit(main())
