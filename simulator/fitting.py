"""A machine from an engine's step log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cadenza.policies.errors import quoted
from cadenza.scheduler.costs import FloatArray, non_negative_least_squares
from cadenza.simulator.errors import SimulatorError
from cadenza.simulator.machines import Machine, check_limits
from cadenza.simulator.step_time import StepTime, Work

FORMAT, VERSION = "cadenza-steps", 1  # as `engine.step_log` writes them
LEAST_STEPS = 20
KNEES = (0, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512)
_STRAY = 0.5  # share by which a step that something else held up is longer than a first fit
_ONCE = 5.0  # times as long as predicted: what a start costs, and no later load pays
_PULL = 1e-9  # towards 0, where steps leave a coefficient open
_COEFFICIENTS = (
    "fixed_s",
    "token_s",
    "decode_s",
    "context_s",
    "attention_s",
    "prefill_context_s",
    "mixed_s",
    "mixed_context_s",
)


class Step(NamedTuple):
    """A line of a log."""

    took_s: float
    between_s: float | None  # from the step before to this one
    work: Work
    copied_blocks: int
    copied_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The steps of an engine, and its limits."""

    path: Path
    device: str
    limits: dict[str, int]
    steps: Sequence[Step]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What was found, and how well it explains the steps."""

    machine: Machine
    num_steps: int
    num_strays: int  # that were left out
    error: float  # mean of |predicted / measured - 1| over the others


def read_log(path: Path) -> Log:
    """All steps of a file.

    Raises:
        SimulatorError: it is no step log, or has a line that is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        head = json.loads(lines[0]) if lines else None
    except OSError as error:
        raise SimulatorError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise SimulatorError(f"{path} is no step log") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise SimulatorError(
            f"{path} is no step log: `cadenza serve --record FILE` writes FILE.steps"
        )
    if head.get("version") != VERSION:
        raise SimulatorError(
            f"{path} has version {quoted(head.get('version'))}, and this is {VERSION}"
        )
    limits = head.get("limits")
    if not isinstance(limits, dict) or "block_size" not in limits:
        raise SimulatorError(f"{path} does not tell the engine's limits")
    check_limits(limits)
    steps = [*_steps(path, lines[1:])]
    return Log(path=path, device=str(head.get("device", "")), limits=limits, steps=steps)


def _steps(path: Path, lines: Sequence[str]) -> Iterator[Step]:
    for number, line in enumerate(lines, start=2):
        try:
            step = _step(json.loads(line))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            if number == len(lines) + 1:
                return  # an engine that was killed has left half a line
            raise SimulatorError(f"{path}, line {number} is no step") from error
        if step.work.tokens > 0:
            yield step


def _step(line: dict[str, Any]) -> Step:
    prefills = np.array(line["prefills"], dtype=np.float64).reshape(-1, 2)
    count, before = prefills.T
    decodes = int(line["decodes"])
    work = Work(
        tokens=float(count.sum()) + decodes,
        decodes=decodes,
        contexts=float(line["contexts"]),
        attention=float((count * (before + count / 2)).sum()),
        prefill_contexts=float(before.sum()),
    )
    between_s = None if line["between_s"] is None else float(line["between_s"])
    step = Step(
        float(line["took_s"]), between_s, work, int(line["copied_blocks"]), float(line["copied_s"])
    )
    rows = (*prefills.flat, decodes, work.contexts)
    counts = (*rows, step.copied_blocks, step.copied_s, between_s or 0.0)
    if not all(0 <= each < np.inf for each in counts):
        raise ValueError("a count or a time that cannot be")
    # One that only copies takes no time of its own
    if not (0 if work.tokens else -np.inf) < step.took_s < np.inf:
        raise ValueError("no time")
    return step


def fit(log: Log, name: str) -> Fit:
    """The machine that explains the steps best.

    Least squares with no coefficient below 0, each step weighted by 1 / time, for every knee of
    `KNEES`, of which the best is taken; then once more without strays. Strays tell nothing of what
    a step computes, but they come again: so all is stretched until steps and strays together take
    as long as they took. What lies between two steps, the scheduler's work among it, is their
    median, as an engine that waits for requests is idle there for long.

    Raises:
        SimulatorError: there are too few steps, or none of a kind that a model needs.
    """
    steps = log.steps
    if len(steps) < LEAST_STEPS:
        raise SimulatorError(
            f"{log.path} has {len(steps)} steps with tokens; at least {LEAST_STEPS} are needed, "
            "and 100 varied ones are enough"
        )
    if not any(step.work.tokens > step.work.decodes for step in steps):
        raise SimulatorError(f"{log.path} has no step with a prefill of several tokens")
    if not any(step.work.decodes for step in steps):
        raise SimulatorError(f"{log.path} has no step with decodes")
    works = [step.work for step in steps]
    took_s = np.array([step.took_s for step in steps])
    rough, _ = _best(works, took_s)
    ratios = took_s / _predicted(rough, works)
    # Nothing makes a step short, so that half of them are no strays, whatever the first fit was
    strays = ratios > max(1 + _STRAY, float(np.median(ratios)))
    kept = [work for work, stray in zip(works, strays.tolist(), strict=True) if not stray]
    model, error = _best(kept, took_s[~strays])
    predicted_s = _predicted(model, works)
    again = took_s < _ONCE * predicted_s
    model = model.scaled(float(took_s[again].sum() / predicted_s[again].sum()))
    between = [step.between_s for step in steps if step.between_s is not None]
    overhead_s = float(np.median(between)) if between else 0.0
    machine = Machine(
        name=name,
        source=f"fit to {len(kept)} steps of {log.path.name} on {log.device}, within {error:.1%}",
        step_time=_with_overhead(model, overhead_s),
        copy_token_s=_copy_token_s(log),
        limits=log.limits,
    )
    return Fit(machine=machine, num_steps=len(steps), num_strays=int(strays.sum()), error=error)


def _best(works: Sequence[Work], took_s: FloatArray) -> tuple[StepTime, float]:
    """Over all knees, with the mean relative error."""
    found = [_fitted(works, took_s, knee) for knee in KNEES]
    errors = [float(np.abs(_predicted(each, works) / took_s - 1).mean()) for each in found]
    best = int(np.argmin(errors))
    return found[best], errors[best]


def _fitted(works: Sequence[Work], took_s: FloatArray, knee: int) -> StepTime:
    features = _features(works, knee)
    weights = 1 / took_s
    scale = np.sqrt((features**2 * weights[:, None]).sum(axis=0))
    seen = scale > 0
    scaled = features[:, seen] / scale[seen]
    gram = (scaled.T * weights) @ scaled + _PULL * np.eye(int(seen.sum()))
    coefficients = np.zeros(len(_COEFFICIENTS))
    target = (scaled.T * weights) @ took_s
    coefficients[seen] = non_negative_least_squares(gram, target) / scale[seen]
    return StepTime(knee=knee, **dict(zip(_COEFFICIENTS, coefficients.tolist(), strict=True)))


def _features(works: Sequence[Work], knee: int) -> npt.NDArray[np.float64]:
    """Float64 [steps, coefficients], in the order of `_COEFFICIENTS`."""
    return np.array(
        [
            (
                1.0,
                max(0.0, work.tokens - knee),
                work.decodes,
                work.contexts,
                work.attention,
                work.prefill_contexts,
                work.is_mixed,
                work.is_mixed * work.contexts,
            )
            for work in works
        ],
        dtype=np.float64,
    )


def _predicted(model: StepTime, works: Sequence[Work]) -> FloatArray:
    return np.array([model.seconds(work) for work in works])


def _with_overhead(model: StepTime, overhead_s: float) -> StepTime:
    values = {name: getattr(model, name) for name in (*_COEFFICIENTS, "knee")}
    return StepTime(**{**values, "fixed_s": model.fixed_s + overhead_s})


def _copy_token_s(log: Log) -> float:
    blocks = sum(step.copied_blocks for step in log.steps)
    copied_s = sum(step.copied_s for step in log.steps)
    return copied_s / blocks / log.limits["block_size"] if blocks else 0.0
