"""The engine as the rest of the front knows it, whichever process that is at the time.

It takes apart what the present one says. When that is gone, its work waits for the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence

import structlog

from cadenza.service.engine_connection import EngineConnection
from cadenza.service.engine_questions import ANSWER_LIMIT_S, Answer, Questions, in_time
from cadenza.service.engine_totals import EngineTotals
from cadenza.service.engine_work import EngineWork
from cadenza.service.errors import EngineUnavailable
from cadenza.service.news import read_news
from cadenza.wire.messages import (
    Counters,
    Decision,
    EngineConfig,
    Failed,
    PoliciesAnswer,
    PoliciesState,
    Progress,
    Ready,
    ResetPrefixCache,
    Shutdown,
    Start,
    Step,
    ToEngine,
    ToFront,
)

logger = structlog.get_logger(__name__)

_CLOSED = "The service is shutting down."
_GONE = "The engine process is gone."


class EngineClient:
    """Every engine process of this front, one after another.

    `connect` makes it, with the first one. If it `recovers`, an engine that is lost after it was
    ready is only a pause: `loss` ends, the `work` waits, and goes on once `succeed` has brought
    another that is ready, until `fail` is called. Else a loss is that failure, after which `send`
    raises EngineUnavailable.
    """

    def __init__(self, *, recovers: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self.failure: str | None = None  # why there is no engine any more, for operators
        self.patience_s = 0.0  # for which the engine may be silent now, as it said
        self.totals = EngineTotals()
        self.work = EngineWork(self._deliver, self._show)
        self._recovers = recovers
        self._connection: EngineConnection | None = None
        self._limits: Ready | None = None
        self._next_number = 1
        self._questions = Questions()
        self._ready: asyncio.Future[Ready] = loop.create_future()  # of the present engine
        self._loss: asyncio.Future[str] = loop.create_future()  # of the present engine
        self._lost: asyncio.Future[str] = loop.create_future()
        self._closing = False
        self._received = 0  # messages that the engine says it has handled
        self._sent = 0  # messages that it counts
        self._at_rest = True  # the engine has handled them all, and need not say anything
        self._on_progress: list[Callable[[Progress], None]] = []
        self._on_decisions: list[Callable[[Sequence[Decision]], None]] = []
        self._on_counters: list[Callable[[Counters], None]] = []
        self._on_serving: list[Callable[[bool], None]] = []

    @classmethod
    async def connect(cls, end: socket.socket, *, recovers: bool = False) -> EngineClient:
        """Take over one end of a socketpair, which now belongs to the client."""
        client = cls(recovers=recovers)
        await client._open(end)
        return client

    async def succeed(self, end: socket.socket, config: EngineConfig) -> None:
        """Let another engine process start with `config`, and go on with all rows once it is ready.

        Its end of a socketpair now belongs to the client.
        """
        assert self._connection is None, "there is an engine"
        self.work.convict()
        await self._open(end)
        self.start(config)

    async def loss(self) -> str:
        """Wait until the present engine is gone, or there is to be none any more; returns why."""
        return await asyncio.shield(self._loss)

    @property
    def counters(self) -> Counters:
        """The engine's state, and totals over all engines."""
        return self.totals.counters

    @property
    def num_heard(self) -> int:
        """How often the present engine has said something; -1: there is none."""
        return -1 if self._connection is None else self._connection.num_reads

    @property
    def is_closing(self) -> bool:
        """Whether `close` ended the connection, rather than the engine."""
        return self._closing

    @property
    def limits(self) -> Ready | None:
        """What the engine said when it was ready, or the one before; None before."""
        return self._limits

    @property
    def is_serving(self) -> bool:
        """Whether a row sent now would be served."""
        return self.failure is None and self._ready.done()

    @property
    def is_busy(self) -> bool:
        """Whether the engine has something to do, and will say so when it has done it."""
        return not self._at_rest or self.work.is_overdue

    def start(self, config: EngineConfig) -> None:
        """Send the engine its configuration, which is the first message."""
        self._write(Start(config))

    def watch_serving(self, callback: Callable[[bool], None]) -> None:
        """Call back on the loop when the engine begins or ceases to serve. It must not raise."""
        self._on_serving.append(callback)

    def watch_progress(self, callback: Callable[[Progress], None]) -> None:
        """Call back on the loop for every start-up message."""
        self._on_progress.append(callback)

    def watch_decisions(self, callback: Callable[[Sequence[Decision]], None]) -> None:
        """Call back on the loop with the decisions of every step that made any, rows known or not.

        A callback that raises is logged; the rows do not notice.
        """
        self._on_decisions.append(callback)

    def watch_counters(self, callback: Callable[[Counters], None]) -> None:
        """Call back on the loop with the counters of every step. It must not raise."""
        self._on_counters.append(callback)

    async def ready(self) -> Ready:
        """Wait until the engine serves.

        Raises:
            EngineUnavailable: there is none any more, or it dies while the first one loads.
        """
        while self.failure is None:
            ready = await asyncio.shield(self._ready)
            if self.is_serving:
                return ready
        raise EngineUnavailable(self.failure)

    async def lost(self) -> None:
        """Wait until there is no engine any more, for whatever reason."""
        await asyncio.shield(self._lost)

    def take_numbers(self, count: int) -> int:
        """The first of `count` consecutive request numbers that were never given out."""
        first = self._next_number
        self._next_number += count
        return first

    def reset_prefix_cache(self) -> asyncio.Future[None]:
        """Let the engine forget every cached prefix; the future ends when it has.

        Raises:
            EngineUnavailable: the engine does not serve yet, or is dead; from the future if it dies
                meanwhile.
        """
        self._refuse_unless_serving()
        self.send(ResetPrefixCache())
        return self._questions.handled(self._sent)

    async def caught_up(self) -> None:
        """Wait until the engine has handled what was sent so far, or is dead. Never raises."""
        if self.is_serving and self._received < self._sent:
            with contextlib.suppress(EngineUnavailable):
                await self._questions.handled(self._sent)

    async def ask(
        self, question: Callable[[int], ToEngine], limit_s: float | None = ANSWER_LIMIT_S
    ) -> Answer:
        """Send what `question` makes of a number, and wait for the answer with that number.

        An answer that comes after `limit_s` is nobody's. None: wait while the engine lives.

        Raises:
            EngineUnavailable: the engine does not serve yet, is dead, or dies meanwhile, or it does
                not answer in time.
        """
        self._refuse_unless_serving()
        number = self.take_numbers(1)
        answer = self._questions.ask(number)
        try:
            self.send(question(number))
            return await in_time(answer, limit_s)
        finally:
            self._questions.forget(number)

    def send(self, message: ToEngine) -> None:
        """Send without waiting. The engine is busy until a frame says that it has handled this.

        Raises:
            EngineUnavailable: there is no engine now.
        """
        self._write(message)
        self._sent += 1
        self._at_rest = False

    def close(self) -> None:
        """Ask the engine to leave, and close the connection once that is sent. Idempotent."""
        if self.failure is not None or self._closing:
            return
        self._closing = True
        if self._connection is None:
            self.fail(_CLOSED)
        else:
            self._write(Shutdown())
            self._connection.close()

    def break_off(self, reason: str) -> None:
        """The present engine is of no use any more, whether it knows that or not."""
        self._let_go(reason)

    def blame(self, policy: str, hook: str) -> None:
        """The engine was lost in this hook, so that no row is to blame, and the next is told."""
        self.totals.blame(policy, hook)
        self.work.acquit()

    def fail(self, reason: str) -> None:
        """There is no engine any more: everybody who waits is told, once."""
        if self.failure is not None:
            return
        self.failure = reason
        if self._limits is not None and not self._closing:  # who started it tells of a start-up
            logger.error("engine_lost", reason=reason, rows=len(self.work))
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        self._at_rest = True
        self._end_ready(reason)
        self._questions.fail(reason)
        self.work.fail(reason)
        for future in (self._loss, self._lost):
            if not future.done():
                future.set_result(reason)
        self._tell_serving()

    async def _open(self, end: socket.socket) -> None:
        if self._loss.done():
            self._loss = asyncio.get_running_loop().create_future()
        self._connection = await EngineConnection.open(end, self._dispatch, self._on_lost)

    def _deliver(self, message: ToEngine) -> int:
        self.send(message)
        return self._sent

    def _refuse_unless_serving(self) -> None:
        if not self.is_serving:
            raise EngineUnavailable(self.failure or "The engine is still starting.")

    def _write(self, message: ToEngine) -> None:
        if self.failure is not None or self._connection is None:
            raise EngineUnavailable(self.failure or _GONE)
        self._connection.write(message)

    def _on_lost(self, wrong: str | None) -> None:
        if self._closing:
            self.fail(_CLOSED)
        else:
            self._let_go(
                _GONE if wrong is None else f"The engine sent what we cannot read: {wrong}"
            )

    def _let_go(self, reason: str) -> None:
        """The present engine is lost, which is a pause or the end."""
        if self._connection is None:
            return
        if not self._recovers or self._limits is None or self._closing:
            self.fail(reason)
            return
        self._connection.abort()
        self._connection = None
        was_serving = self.is_serving
        logger.error("engine_lost", reason=reason, rows=len(self.work))
        self._end_ready(reason)
        self._questions.fail(reason)
        self._show(self.work.engine_lost(reason, self._received, self.counters.steps))
        self.totals.engine_lost()
        self._sent = self._received = 0
        self._at_rest, self.patience_s = True, 0.0
        self._loss.set_result(reason)
        if was_serving:
            self._tell_serving()

    def _end_ready(self, reason: str) -> None:
        """Whoever waits for the engine waits no longer, or for the next one."""
        if self.failure is None:
            if self._ready.done():
                self._ready = asyncio.get_running_loop().create_future()
        elif not self._ready.done():
            self._ready.set_exception(EngineUnavailable(reason))
            self._ready.exception()  # seen: nobody need be waiting

    def _tell_serving(self) -> None:
        for callback in self._on_serving:
            callback(self.is_serving)

    # messages

    def _dispatch(self, message: ToFront) -> None:
        match message:
            case Step():
                self._on_step(message)
            case Failed():
                self._on_failed(message)
            case Ready():
                self._on_ready(message)
            case PoliciesAnswer() | PoliciesState():
                self._questions.answer(message)
            case Progress():
                for callback in self._on_progress:
                    callback(message)

    def _on_ready(self, ready: Ready) -> None:
        if not self._ready.done():
            self._limits = ready
            self._ready.set_result(ready)
            self.work.engine_ready()
            self._tell_serving()

    def _on_failed(self, failed: Failed) -> None:
        if failed.request is None:
            self._let_go(failed.message)
        else:
            self.work.refuse(failed.request, failed.message)

    def _on_step(self, step: Step) -> None:
        news = read_news(step)
        counters = self.totals.update(step)
        for callback in self._on_counters:
            callback(counters)
        self.patience_s, self._received = step.patience_s, step.counters.received
        # A frame may have left before the engine read what we sent last
        self._at_rest = step.counters.at_rest and self._received == self._sent
        self.work.hand_out(news, step.prompt_scores, step.decisions)
        if step.decisions:
            self._show(step.decisions)
        self._questions.has_handled(self._received)
        self.work.has_handled(self._received, is_idle=self._at_rest)

    def _show(self, decisions: Sequence[Decision]) -> None:
        if not decisions:
            return
        for callback in self._on_decisions:
            try:
                callback(decisions)
            except Exception:
                logger.exception("decision_watcher_failed")
