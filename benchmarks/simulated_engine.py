"""What the simulator says of the engine, with the demo model, and what the engine does.

Between any two loads that are served, the engine computes another one, of other lengths, rate and
seed. A load is simulated with the machine that the steps just before and just after it tell, so
that a slower minute is one for both sides; what those before it tell alone stands beside. Judged
are medians over the rounds, and whether the profiles stand in the same order by p99 TTFT and by
goodput, wherever the engine has one from round to round.

Tenants of unequal size share ten long beginnings, of which the cache holds some: there profiles
have something to differ in. Another load has few blocks and a profile that reserves none of them,
so that it preempts. All ask for more than can be served: near that point a step that takes 5% more
makes a queue some 15% longer, and what is told would be the machine's noise.

The engine is scheduler and model in this process, on the machine's clock, driven by the loop that
drives the simulation: what the service adds around them, which is the same under any policy, is not
in it. Tokens that the model chooses are computed and dropped, so that lengths are the trace's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from cadenza.checkpoints.locate import locate
from cadenza.cli.options import PolicyOptions
from cadenza.cli.profile import configure
from cadenza.engine.startup import RunnerFacts, build_runner
from cadenza.engine.step_log import LoggedRunner
from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.costs import CostModel
from cadenza.scheduler.plan import Runner, StepPlan, StepTimes
from cadenza.simulator.engine import Engine, VirtualEngine
from cadenza.simulator.fitting import fit, read_log
from cadenza.simulator.machines import Machine
from cadenza.simulator.run import Run
from cadenza.simulator.simulation import EOS, Simulation
from cadenza.simulator.summary import Targets, summary
from cadenza.simulator.synthetic import Shape, synthetic
from cadenza.simulator.trace import Trace
from cadenza.wire.messages import EngineConfig, Sampling

sys.path.append(str(Path(__file__).parent))
from machine import heading

PROFILES = {
    "fcfs": PolicyOptions(scheduling_policy="fcfs"),
    "prefix-aware": PolicyOptions(scheduling_policy="prefix-aware"),
    "fair-share": PolicyOptions(scheduling_policy="fair-share"),
    "unreserved": PolicyOptions(scheduling_policy="fcfs", policy=("reserve=none",)),
}
COMPARED = ("fcfs", "prefix-aware", "fair-share")
PREEMPTING = ("unreserved",)
CALIBRATION_STEPS = 100  # before a load, and as many after it
TARGETS = Targets(ttft_s=2.0, tpot_s=0.1)
# What is judged, where a summary has it, and by how much it may be off
JUDGED = {
    "TPOT mean": (("tpot_s", "mean"), 0.10),
    "E2E mean": (("e2e_s", "mean"), 0.10),
    "TTFT p90": (("ttft_s", "p90"), 0.15),
    "preemptions": (("preemptions", "all"), 0.20),
}
RANKED = {"p99 TTFT": ("ttft_s", "p99"), "goodput": ("goodput_per_s",)}
TIE = 0.05  # profiles that are closer in the engine have no order there, nor where rounds disagree
LEAST_ROUNDS = 3  # before which nothing is known of that

# As many rows at a time as loads have: a fit is worth little beyond what it has seen
CALIBRATION = Shape(requests=30, rate=8, prompt=80, output=50, tail=1.0, prefixes=3, prefix=96)
LOAD = Shape(
    requests=60, prompt=100, output=30, tail=0.8, prefixes=10, prefix=384, tenants=4, skew=2.0
)
TIGHT = Shape(requests=40, rate=50, prompt=40, output=120, tail=0.5)
TIGHT_BLOCKS = 96


class Load(NamedTuple):
    name: str
    trace: Trace
    profiles: Sequence[str]
    num_blocks: int | None = None


class RealEngine:
    """The model, on the machine's clock."""

    def __init__(self, runner: Runner, facts: RunnerFacts) -> None:
        self._runner = runner
        self.costs = CostModel(token_s=facts.token_s, copy_block_s=facts.copy_block_s)
        self._began_s = time.monotonic()

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    def execute(self, plan: StepPlan) -> StepTimes:
        return self._runner.launch(plan)().times

    def wait_until(self, time_s: float) -> None:
        time.sleep(max(0.0, time_s - self.now_s))


class Bench:
    """The demo model loaded once, and the machine that its steps are taken for."""

    def __init__(self, num_blocks: int, threads: int | None) -> None:
        config = EngineConfig(
            model=str(locate("demo").path),
            num_blocks=num_blocks,
            max_num_seqs=32,
            threads=threads,
        )
        self.runner, self.facts = build_runner(
            config, lambda request: (Sampling(temperature=0.0), 0), lambda *_: None
        )
        self.limits = SchedulerConfig(
            num_blocks=self.facts.num_blocks,
            block_size=self.facts.block_size,
            max_model_len=self.facts.max_model_len,
            max_num_seqs=self.facts.max_num_seqs,
            max_num_batched_tokens=max(self.facts.max_num_batched_tokens, 96),
            eos_token_ids=frozenset({EOS}),
            num_host_blocks=self.facts.num_host_blocks,
        )

    def calibration(self) -> list[str]:
        """The log of the first steps of the calibration load, after a line about the engine."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "calibration.steps"
            runner = LoggedRunner(self.runner, path, self.limits, self.facts.device)
            self.run("fcfs", synthetic(CALIBRATION, 99), RealEngine(runner, self.facts))
            runner.close()
            return path.read_text().splitlines()[: CALIBRATION_STEPS + 1]

    def served(self, profile: str, load: Load) -> dict[str, Any]:
        engine = RealEngine(self.runner, self.facts)
        return summary(self.run(profile, load.trace, engine, load.num_blocks), TARGETS)

    def simulated(self, profile: str, load: Load, machine: Machine) -> dict[str, Any]:
        engine = VirtualEngine(machine, self.limits.block_size)
        return summary(self.run(profile, load.trace, engine, load.num_blocks), TARGETS)

    def run(self, profile: str, trace: Trace, engine: Engine, num_blocks: int | None = None) -> Run:
        """num_blocks: at most those that the cache has; None: all."""
        configured, limits = configure(PROFILES[profile]), self.limits
        if num_blocks is not None:
            longest = min(limits.max_model_len, num_blocks * limits.block_size)
            limits = replace(limits, num_blocks=num_blocks, max_model_len=longest)
        return Simulation(profile, trace, limits, configured.profile, engine, max_tokens=256).run()


def machine_of(before: Sequence[str], after: Sequence[str] = ()) -> Machine:
    """That of one calibration, or of two."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "calibration.steps"
        path.write_text("\n".join([*before, *after[1:]]) + "\n")
        found = fit(read_log(path), "demo")
    print(f"calibrated: {found.machine.source}, {found.num_strays} strays", flush=True)
    return found.machine


class Judged(NamedTuple):
    """One load: what was served and simulated of each profile, round by round."""

    load: Load
    served: dict[str, list[dict[str, Any]]]
    simulated: dict[str, list[dict[str, Any]]]
    foretold: dict[str, list[dict[str, Any]]]  # without what was calibrated after the load

    @classmethod
    def of(cls, load: Load) -> Judged:
        return cls(load, *({name: [] for name in load.profiles} for _ in range(3)))

    def serve(self, bench: Bench, before: list[str]) -> list[str]:
        """Return the last calibration, and take that before the load."""
        for profile in self.load.profiles:
            served = bench.served(profile, self.load)
            after = bench.calibration()
            self.served[profile].append(served)
            for told, machine in (
                (self.simulated, machine_of(before, after)),
                (self.foretold, machine_of(before)),
            ):
                told[profile].append(bench.simulated(profile, self.load, machine))
            before = after
        return before

    def tell(self) -> None:
        print(f"\n{self.load.name}, medians")
        for profile in self.load.profiles:
            served, simulated = self.served[profile], self.simulated[profile]
            foretold = self.foretold[profile]
            for name, (path, most) in JUDGED.items():
                judge(profile, name, *(middle(each, path) for each in (served, simulated)), most)
                print(f"{error(middle(served, path), middle(foretold, path)):+7.1%} foretold")
            queued = middle(served, ("queued_share",))
            print(f"{profile:13} time with a queue {queued:.0%}")
        if self.load.profiles == COMPARED:
            self._rank()

    def figures(self) -> dict[str, Any]:
        return {
            "load": self.load.name,
            "served": self.served,
            "simulated": self.simulated,
            "foretold": self.foretold,
        }

    def _rank(self) -> None:
        for name, path in RANKED.items():
            real, ours = (
                {profile: [at(each, path) for each in rounds] for profile, rounds in side.items()}
                for side in (self.served, self.simulated)
            )
            print(f"by {name}: {ranking(real)}; simulated {ranking(ours)}: {agreement(real, ours)}")


def judge(profile: str, name: str, real: float, ours: float, most: float) -> None:
    off = error(real, ours)
    told = "met" if abs(off) <= most else "NOT MET"
    print(
        f"{profile:13} {name:12} engine {real:9.4g}  simulated {ours:9.4g}  {off:+7.1%}, "
        f"target {most:.0%}: {told:8}",
        end="",
    )


def error(real: float, ours: float) -> float:
    return ours / real - 1 if real else float(ours != real)


def middle(summaries: Sequence[dict[str, Any]], path: Sequence[str]) -> float:
    return median(at(each, path) for each in summaries)


def at(figures: dict[str, Any], path: Sequence[str]) -> float:
    value: Any = figures
    for key in path:
        value = value[key]
    return float(value)


def ranking(rounds: dict[str, list[float]]) -> str:
    middles = {profile: median(values) for profile, values in rounds.items()}
    order = sorted(middles, key=lambda profile: middles[profile])
    return " < ".join(f"{profile} {middles[profile]:.3g}" for profile in order)


def agreement(real: dict[str, list[float]], ours: dict[str, list[float]]) -> str:
    """Whether the simulated order is the engine's, wherever that has one."""
    pairs = [(a, b) for a, b in permutations(real, 2) if _is_clear(real[a], real[b])]
    told = ", ".join(f"{a} < {b}" for a, b in pairs) or "none"
    same = all(median(ours[a]) < median(ours[b]) for a, b in pairs)
    return f"{'same' if same else 'NOT THE SAME'} of what is clear: {told}"


def _is_clear(lower: list[float], upper: list[float]) -> bool:
    if len(lower) < LEAST_ROUNDS:
        return False
    num_so = sum(a < b for a, b in zip(lower, upper, strict=True))
    is_apart = median(upper) > (1 + TIE) * median(lower)
    return is_apart and num_so >= 0.8 * len(lower)


def loads_of(options: argparse.Namespace) -> list[Load]:
    shapes = {rate: LOAD._replace(rate=rate, requests=options.requests) for rate in options.rates}
    return [
        *(
            Load(f"{rate:g} requests a second", synthetic(shape, options.seed), COMPARED)
            for rate, shape in shapes.items()
        ),
        Load(
            f"{TIGHT_BLOCKS} blocks", synthetic(TIGHT, options.seed + 1), PREEMPTING, TIGHT_BLOCKS
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", type=float, nargs="+", default=[8.0, 16.0])
    parser.add_argument("--requests", type=int, default=LOAD.requests)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="of the loads")
    parser.add_argument("--blocks", type=int, default=192)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, help="a file for all summaries")
    options = parser.parse_args()
    print(heading())
    bench = Bench(options.blocks, options.threads)
    loads = [Judged.of(load) for load in loads_of(options)]
    calibration = bench.calibration()
    for number in range(1, options.rounds + 1):
        for load in loads:
            calibration = load.serve(bench, calibration)
        if options.json:
            options.json.write_text(json.dumps([load.figures() for load in loads]))
        print(f"\n{number} of {options.rounds} rounds")
        for load in loads:
            load.tell()
        print(flush=True)


if __name__ == "__main__":
    main()
