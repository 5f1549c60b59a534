"""The engine's loop: inbox, step, frame, forward pass, and again. Synchronous, one thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import structlog

from cadenza.engine.channel import Channel
from cadenza.engine.frames import step_frame
from cadenza.engine.patience import Patience
from cadenza.engine.policies import EnginePolicies
from cadenza.scheduler.plan import Runner, StepOutcome
from cadenza.scheduler.request import Arrival, Refused
from cadenza.scheduler.scheduler import Scheduler
from cadenza.scheduler.states import FinishReason
from cadenza.wire.arrays import view_ids
from cadenza.wire.messages import (
    Cancel,
    Credit,
    DescribePolicies,
    Failed,
    Finish,
    ReleasePolicy,
    Reprioritise,
    ResetPrefixCache,
    Resubmit,
    SetDeadline,
    Shutdown,
    Stall,
    Submit,
    ToEngine,
    UseProfile,
    UseShadow,
)

MAX_BACKLOG_BYTES = 4 << 20  # unsent frames; beyond it nothing is planned until the front reads
_LONGEST_WAIT_S = 3600.0  # at once; `select` refuses what does not fit its clock
_LOOK_AGAIN_S = 0.005  # while other policies are prepared and there is nothing else to do

_log = structlog.get_logger(__name__)


class EngineLoop:
    """Feeds the scheduler from the channel, the runner from the scheduler, and the front from both.

    `submits` maps the number of each live row to its message, where the runner finds its settings.
    `policies` are those of the scheduler.
    """

    def __init__(
        self,
        channel: Channel,
        scheduler: Scheduler,
        runner: Runner,
        submits: dict[int, Submit],
        policies: EnginePolicies,
        clock: Callable[[], float] = time.monotonic,
        patience: Patience | None = None,
    ) -> None:
        self._channel = channel
        self._scheduler = scheduler
        self._runner = runner
        self._submits = submits
        self._policies = policies
        self._clock = clock
        self._patience = patience
        self._outcome: StepOutcome | None = None
        self._stopping = False
        self._was_congested = False
        self._received = 0  # messages handled
        self._has_news = False  # the front shall be told, whether or not there is work

    def run(self) -> None:
        """Serve until `Shutdown`.

        Raises:
            ChannelClosed: the front process is gone.
            FrameError: the front process sent something that is no message.
        """
        while self.turn():
            pass

    def turn(self) -> bool:
        """Handle what has come, and step if there is anything to do. False: it was `Shutdown`.

        Raises as `run`.
        """
        self._drain_inbox()
        if self._stopping:
            return False
        self._change_policies()
        if not self._is_congested() and self._is_due():
            self._step()
        return True

    def _drain_inbox(self) -> None:
        congested = self._is_congested()
        if congested and not self._was_congested:
            _log.warning("the front process does not read; waiting", backlog=self._channel.backlog)
        self._was_congested = congested
        for message in self._channel.receive(None if congested else self._patience_s()):
            self._handle(message)

    def _is_congested(self) -> bool:
        return self._channel.backlog > MAX_BACKLOG_BYTES

    def _is_due(self) -> bool:
        scheduler = self._scheduler
        return self._has_news or scheduler.has_work or self._clock() >= scheduler.next_deadline_s

    def _patience_s(self) -> float | None:
        """How long the loop may wait for messages, in seconds; None: for ever."""
        if self._has_news or self._scheduler.has_work:
            return 0
        longest_s = _LOOK_AGAIN_S if self._policies.is_changing else _LONGEST_WAIT_S
        deadline_s = self._scheduler.next_deadline_s
        if math.isinf(deadline_s):
            return longest_s if self._policies.is_changing else None
        return min(max(deadline_s - self._clock(), 0), longest_s)

    def _handle(self, message: ToEngine) -> None:
        """Every message is answered by a frame: silence would mean that the engine hangs."""
        scheduler = self._scheduler
        self._received += 1
        self._has_news = True
        match message:
            case Submit():
                self._submit(message)
            case Resubmit(rows):
                self._resubmit(rows)
            case Cancel(request):
                self._submits.pop(request, None)
                scheduler.drop(request)
            case Finish(request, tokens_kept):
                self._submits.pop(request, None)
                scheduler.finish(request, tokens_kept)
            case Credit(request, tokens):
                scheduler.grant(request, tokens)
            case Stall(request, is_stalled):
                scheduler.stall(request, is_stalled=is_stalled)
            case Reprioritise(request, priority):
                scheduler.reprioritise(request, priority)
            case SetDeadline(request, deadline_s):
                scheduler.set_deadline(request, _or_never(deadline_s))
            case ResetPrefixCache():
                scheduler.reset_prefix_cache()
            case UseProfile() | UseShadow() | ReleasePolicy() | DescribePolicies():
                answer = self._policies.handle(message, scheduler)
                if answer is not None:
                    self._channel.send(answer)
            case Shutdown():
                self._stopping = True
            case _:
                _log.warning("unexpected message", kind=type(message).__name__)

    def _submit(self, message: Submit, shares_credit_with: int | None = None) -> bool:
        """Whether the scheduler has taken it."""
        rows = range(message.request, message.request + message.n)
        try:
            self._scheduler.add(_arrival(message, shares_credit_with), self._clock())
        except Refused as error:
            for request in rows:
                self._channel.send(Failed(message=str(error), request=request))
            return False
        self._submits.update(dict.fromkeys(rows, message))
        return True

    def _resubmit(self, rows: Sequence[Submit]) -> None:
        first: int | None = None  # whose credit the others share
        for message in rows:
            if self._submit(message, first) and first is None:
                first = message.request

    def _change_policies(self) -> None:
        """Between two steps."""
        answer = self._policies.advance(self._scheduler)
        if answer is not None:
            self._has_news = True
            self._channel.send(answer)

    def _step(self) -> None:
        """The frame leaves before the next forward pass is done, so that no token waits for it.

        A device that computes beside the host has its work before. It does not while its kernels
        are compiled, about which the front has to know beforehand.
        """
        self._has_news = False
        executed = self._outcome
        report, plan = self._scheduler.step(self._clock(), executed)
        for request in report.requests[report.finished != FinishReason.NOT.value]:
            self._submits.pop(int(request), None)
        statistics = self._scheduler.statistics()
        news = self._policies.take_news()
        uses = self._policies.take_uses(rests=statistics.at_rest)
        patience_s = self._patience.of(plan) if self._patience and plan else 0.0
        frame = step_frame(report, executed, statistics, self._received, news, uses, patience_s)
        self._outcome = None
        if plan is None:
            self._channel.send(frame)
        elif self._patience and self._patience.is_compiling:
            self._channel.send(frame)
            self._outcome = self._runner.launch(plan)()
        else:
            wait = self._runner.launch(plan)
            self._channel.send(frame)
            self._outcome = wait()


def _arrival(message: Submit, shares_credit_with: int | None) -> Arrival:
    return Arrival(
        request=message.request,
        prompt=view_ids(message.prompt),
        emitted=view_ids(message.emitted),
        n=message.n,
        max_tokens=message.max_tokens,
        stop_token_ids=frozenset(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        priority=message.priority,
        tenant=message.tenant,
        cache_salt=message.cache_salt,
        credit=message.credit,
        shares_credit_with=shares_credit_with,
        deadline_s=_or_never(message.deadline_s),
        ttft_target_s=_or_never(message.ttft_target_s),
        tpot_target_s=_or_never(message.tpot_target_s),
        may_swap=message.may_swap,
        may_recompute=message.may_recompute,
    )


def _or_never(time_s: float | None) -> float:
    return math.inf if time_s is None else time_s
