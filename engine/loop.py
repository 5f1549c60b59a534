"""The engine's loop: inbox, step, frame, forward pass, and again. Synchronous, one thread."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from cadenza.engine.channel import Channel
from cadenza.engine.frames import step_frame
from cadenza.scheduler.plan import Runner, StepOutcome
from cadenza.scheduler.request import Arrival, Refused
from cadenza.scheduler.scheduler import Scheduler
from cadenza.scheduler.states import FinishReason
from cadenza.wire.arrays import view_ids
from cadenza.wire.messages import Cancel, Failed, Finish, Shutdown, Submit, ToEngine

MAX_BACKLOG_BYTES = 4 << 20  # unsent frames; beyond it nothing is planned until the front reads

_log = structlog.get_logger(__name__)


class EngineLoop:
    """Feeds the scheduler from the channel, the runner from the scheduler, and the front from both.

    `submits` maps each live request to its message; the runner reads sampling settings from it.
    """

    def __init__(
        self,
        channel: Channel,
        scheduler: Scheduler,
        runner: Runner,
        submits: dict[int, Submit],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel = channel
        self._scheduler = scheduler
        self._runner = runner
        self._submits = submits
        self._clock = clock
        self._outcome: StepOutcome | None = None
        self._stopping = False
        self._was_congested = False

    def run(self) -> None:
        """Serve until `Shutdown`.

        Raises:
            ChannelClosed: the front process is gone.
            FrameError: the front process sent something that is no message.
        """
        while True:
            self._drain_inbox()
            if self._stopping:
                return
            if self._scheduler.has_unfinished and self._channel.backlog <= MAX_BACKLOG_BYTES:
                self._step()

    def _drain_inbox(self) -> None:
        congested = self._channel.backlog > MAX_BACKLOG_BYTES
        if congested and not self._was_congested:
            _log.warning("the front process does not read; waiting", backlog=self._channel.backlog)
        self._was_congested = congested
        waits = congested or not self._scheduler.has_unfinished
        for message in self._channel.receive(None if waits else 0):
            self._handle(message)

    def _handle(self, message: ToEngine) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Cancel(request) | Finish(request):
                self._submits.pop(request, None)
                self._scheduler.drop(request)
            case Shutdown():
                self._stopping = True
            case _:
                _log.warning("unexpected message", kind=type(message).__name__)

    def _submit(self, message: Submit) -> None:
        arrival = Arrival(
            request=message.request,
            prompt=view_ids(message.prompt),
            emitted=view_ids(message.emitted),
            max_tokens=message.max_tokens,
            stop_token_ids=frozenset(message.stop_token_ids),
            ignore_eos=message.ignore_eos,
            priority=message.priority,
            cache_salt=message.cache_salt,
        )
        try:
            self._scheduler.add(arrival, self._clock())
        except Refused as error:
            self._channel.send(Failed(message=str(error), request=message.request))
        else:
            self._submits[message.request] = message

    def _step(self) -> None:
        """The frame leaves before the next forward pass, so that no token waits for it."""
        executed = self._outcome
        report, plan = self._scheduler.step(self._clock(), executed)
        for request in report.requests[report.finished != FinishReason.NOT.value]:
            self._submits.pop(int(request), None)
        self._channel.send(step_frame(report, executed, self._scheduler.statistics()))
        self._outcome = self._runner.execute(plan) if plan else None
        if plan is None and self._scheduler.has_unfinished:
            raise RuntimeError("requests wait, nothing runs, and the step planned nothing")
