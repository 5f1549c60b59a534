"""How long steps took, and what they computed, in a file that `cadenza calibrate` fits."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.plan import Runner, StepOutcome, StepPlan
from cadenza.wire.line_file import LineFile, OtherContent

FORMAT, VERSION = "cadenza-steps", 1
MOST_STEPS = 20_000  # after that nothing is learned any more, and files would grow for ever

_log = structlog.get_logger(__name__)


class LoggedRunner:
    """A runner whose steps are logged, the first `MOST_STEPS` of them."""

    def __init__(
        self,
        runner: Runner,
        path: Path,
        limits: SchedulerConfig,
        device: str,
        clock: Callable[[], float] = time.perf_counter,
        *,
        goes_on: bool = False,
    ) -> None:
        """Write the file anew; `goes_on`: in what a former engine of the same limits has logged.

        Raises:
            OSError: the file cannot be written.
        """
        self._runner, self._path, self._clock = runner, path, clock
        self._ended_s: float | None = None
        names = ("num_blocks", "num_host_blocks", "block_size", "max_model_len", "max_num_seqs")
        head = {
            "format": FORMAT,
            "version": VERSION,
            "device": device,
            "limits": {
                **{name: getattr(limits, name) for name in names},
                "max_num_batched_tokens": limits.max_num_batched_tokens,
            },
        }
        self._file: LineFile | None = _opened(path, head, goes_on=goes_on)
        with path.open("rb") as file:
            self._left = MOST_STEPS + 1 - sum(1 for _ in file)
        if self._left <= 0:
            self.close()

    def launch(self, plan: StepPlan) -> Callable[[], StepOutcome]:
        """Launch the plan, and log it once it was waited for.

        A step takes what the runner keeps its caller for; the rest is between two steps.
        """
        began_s = self._clock()
        between_s = None if self._ended_s is None else began_s - self._ended_s
        wait = self._runner.launch(plan)
        launched_s = self._clock()

        def waited() -> StepOutcome:
            waiting_s = self._clock()
            outcome = wait()
            self._ended_s = self._clock()
            took_s = launched_s - began_s + self._ended_s - waiting_s
            meanwhile_s = None if between_s is None else between_s + waiting_s - launched_s
            if self._file is not None:
                self._write(self._file, _line(plan, outcome, took_s, meanwhile_s))
            return outcome

        return waited

    def _write(self, file: LineFile, line: dict[str, Any]) -> None:
        try:
            file.write(line)
        except OSError as error:
            _log.error("step log ended", path=str(self._path), reason=error.strerror)
            self.close()
        self._left -= 1
        if not self._left:
            self.close()

    def close(self) -> None:
        """Log no further steps. Idempotent; the end of the process does as well."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _opened(path: Path, head: dict[str, Any], *, goes_on: bool) -> LineFile:
    try:
        return LineFile(path, head, is_new=not goes_on)
    except OtherContent:
        return LineFile(path, head, is_new=True)


def _line(
    plan: StepPlan, outcome: StepOutcome, took_s: float, between_s: float | None
) -> dict[str, Any]:
    """A plan's rows as a step's time depends on them, and how long each part of it took."""
    alone = plan.num_new == 1
    prefills = np.stack((plan.num_new[~alone], plan.num_context[~alone]), axis=1)
    times = outcome.times
    return {
        "took_s": round(took_s - times.swap_out_s - times.swap_in_s, 7),
        "between_s": None if between_s is None else round(between_s, 7),
        "decodes": int(np.count_nonzero(alone)),
        "contexts": int(plan.num_context[alone].sum()),
        "prefills": prefills.tolist(),  # tokens, and tokens before them
        "copied_blocks": len(plan.copies.swap_out) + len(plan.copies.swap_in),
        "copied_s": round(times.swap_out_s + times.swap_in_s, 7),
    }
