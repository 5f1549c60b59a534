"""The engine process, with clocks around the parts of its loop.

Started in the engine's place as `timed_engine.py FILE --fd N ...`; when it leaves, it writes what
its steps took to the file, a list in JSON. Each part's time is without that of parts that it calls.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from cadenza.engine import loop, main
from cadenza.engine.channel import Channel
from cadenza.engine.models import Decoder, decoder, plain_layers
from cadenza.engine.runner import ModelRunner
from cadenza.engine.sampler import Sampler
from cadenza.kernels.decoder_layers import NativeLayers
from cadenza.scheduler.plan import StepOutcome, StepPlan
from cadenza.scheduler.scheduler import Scheduler

PRODUCTS, ATTENTION, LAYERS = "products of the layers", "attention", "layers otherwise"
HEAD, REST = "product of the head", "rest of the loop"
PARTS = (
    *("scheduler", "wire", "batch laid out"),
    *(PRODUCTS, ATTENTION, LAYERS, HEAD, "sampling", REST),
)


class Step(NamedTuple):
    """One turn of the loop, from asking for messages to the end of the forward pass."""

    begun_s: float  # on the clock of `time.perf_counter`, which all processes share
    rows: int
    tokens: int
    took_s: dict[str, float]  # by part


class Clock:
    """Charges all time to the part that runs, and closes a step whenever the loop turns."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._begin()

    def around(self, owner: Any, name: str, part: str) -> None:
        """Charge what a function of a class or module takes to a part."""
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            before = self._charge_to(part)
            try:
                return inner(*args, **kwargs)
            finally:
                self._charge_to(before)

        setattr(owner, name, timed)

    def between_steps(self) -> None:
        """Close steps where messages are asked for; time without work belongs to none."""
        receive = Channel.receive

        def timed(channel: Channel, timeout_s: float | None) -> Any:
            self._close()
            before = self._charge_to("wire")
            try:
                return receive(channel, timeout_s)
            finally:
                self._charge_to(before)
                if timeout_s != 0:
                    self._begin()

        Channel.receive = timed  # type: ignore[method-assign]

    def within_layers(self) -> None:
        """Charge the parts of the call that computes all layers, which it tells itself."""
        forward = NativeLayers.forward

        def timed(layers: NativeLayers, *args: Any, **kwargs: Any) -> Any:
            began = layers.times
            try:
                return forward(layers, *args, **kwargs)
            finally:
                ended = layers.times
                for part, took_s in (
                    (PRODUCTS, ended.products_s - began.products_s),
                    (ATTENTION, ended.attention_s - began.attention_s),
                ):
                    self._took_s[part] += took_s
                    self._took_s[LAYERS] -= took_s

        NativeLayers.forward = timed  # type: ignore[method-assign]

    def around_plans(self) -> None:
        """Note what each step computes."""
        launch = ModelRunner.launch

        def noting(runner: ModelRunner, plan: StepPlan) -> Callable[[], StepOutcome]:
            self._plan = plan
            return launch(runner, plan)

        ModelRunner.launch = noting  # type: ignore[method-assign]

    def _charge_to(self, part: str) -> str:
        now_s, before = time.perf_counter(), self._part
        self._took_s[before] += now_s - self._since_s
        self._since_s, self._part = now_s, part
        return before

    def _close(self) -> None:
        self._charge_to(REST)
        if (plan := self._plan) is not None:
            step = Step(self._begun_s, plan.num_rows, plan.num_tokens, dict(self._took_s))
            self.steps.append(step)
        self._begin()

    def _begin(self) -> None:
        self._begun_s = self._since_s = time.perf_counter()
        self._part = REST
        self._took_s: defaultdict[str, float] = defaultdict(float)
        self._plan: StepPlan | None = None


def run(path: Path, arguments: list[str]) -> int:
    clock = Clock()
    clock.between_steps()
    clock.around_plans()
    clock.around(Channel, "send", "wire")
    clock.around(loop, "step_frame", "wire")
    clock.around(Scheduler, "step", "scheduler")
    clock.around(Scheduler, "statistics", "scheduler")
    clock.around(ModelRunner, "_begun", "batch laid out")
    clock.around(Decoder, "hidden", LAYERS)
    clock.around(Decoder, "logits", LAYERS)
    clock.within_layers()
    clock.around(plain_layers, "linear", PRODUCTS)
    clock.around(plain_layers, "paged_attention", ATTENTION)
    clock.around(decoder, "linear", HEAD)
    clock.around(Sampler, "draw", "sampling")
    status = main.main(arguments)
    path.write_text(json.dumps(clock.steps))
    return status


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
