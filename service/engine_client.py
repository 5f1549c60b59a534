"""The front's end of the socketpair: sends rows to the engine and takes apart what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from typing import cast

import structlog

from cadenza.service.engine_questions import ANSWER_LIMIT_S, Answer, Questions, in_time
from cadenza.service.engine_rows import Row, Rows
from cadenza.service.errors import EngineUnavailable
from cadenza.service.news import read_news
from cadenza.wire.codec import FrameError, FrameReader, encode
from cadenza.wire.messages import (
    Cancel,
    Counters,
    Credit,
    Decision,
    EngineConfig,
    Failed,
    FaultCount,
    Finish,
    HookUse,
    PoliciesAnswer,
    PoliciesState,
    Progress,
    Ready,
    Reprioritise,
    ResetPrefixCache,
    SetDeadline,
    Shutdown,
    Start,
    Step,
    Submit,
    ToEngine,
    ToFront,
)

logger = structlog.get_logger(__name__)

_GONE = "The engine process is gone."


class EngineClient(asyncio.Protocol):
    """One connection to one engine process.

    `connect` makes it. Every registered row gets an end: a finishing token, or `on_failed` when
    the engine fails or its connection is lost, after which `send` raises EngineUnavailable.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.counters = Counters()
        self.hook_uses: Sequence[HookUse] = ()  # as the engine told last, at most a second ago
        self.policy_faults: Sequence[FaultCount] = ()  # of hooks that ever failed
        self.failure: str | None = None  # why the engine is dead, for operators
        self._reader: FrameReader[ToFront] = FrameReader(ToFront)
        self._transport: asyncio.WriteTransport | None = None
        self._rows = Rows(lambda request: self._tell(Cancel(request)))
        self._next_number = 1
        self._questions = Questions()
        self._ready: asyncio.Future[Ready] = loop.create_future()
        self._lost: asyncio.Future[None] = loop.create_future()
        self._closing = False
        self._heard_s = time.monotonic()
        self._sent = 0  # messages that the engine counts
        self._at_rest = True  # the engine has handled them all, and need not say anything
        self._on_progress: list[Callable[[Progress], None]] = []
        self._on_decisions: list[Callable[[Sequence[Decision]], None]] = []
        self._on_counters: list[Callable[[Counters], None]] = []

    @classmethod
    async def connect(cls, end: socket.socket) -> EngineClient:
        """Take over one end of a socketpair, which now belongs to the client."""
        loop = asyncio.get_running_loop()
        end.setblocking(False)
        _, client = await loop.create_unix_connection(cls, sock=end)
        return client

    @property
    def num_rows(self) -> int:
        """Rows that have not ended."""
        return len(self._rows)

    @property
    def is_closing(self) -> bool:
        """Whether `close` ended the connection, rather than the engine."""
        return self._closing

    @property
    def limits(self) -> Ready | None:
        """What the engine said when it was ready; None before."""
        if self._ready.done() and not self._ready.exception():
            return self._ready.result()
        return None

    @property
    def is_serving(self) -> bool:
        """Whether a row sent now would be served."""
        return self.failure is None and self.limits is not None

    @property
    def silence_s(self) -> float:
        """For how long the engine has said nothing although it has something to do."""
        return 0.0 if self._at_rest else time.monotonic() - self._heard_s

    def start(self, config: EngineConfig) -> None:
        """Send the engine its configuration, which is the first message."""
        self._write(Start(config))

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
            EngineUnavailable: it is dead, or dies while loading.
        """
        if self.failure is None:
            ready = await asyncio.shield(self._ready)
        if self.failure is not None:
            raise EngineUnavailable(self.failure)
        return ready

    async def lost(self) -> None:
        """Wait until the connection is over, for whatever reason."""
        await asyncio.shield(self._lost)

    def take_numbers(self, count: int) -> int:
        """The first of `count` consecutive request numbers that were never given out."""
        first = self._next_number
        self._next_number += count
        return first

    def submit(self, message: Submit, rows: Sequence[Row]) -> None:
        """Send a prompt, and hand what comes back for its `message.n` rows to `rows`, in order.

        Raises:
            EngineUnavailable: the engine is dead.
        """
        self.send(message)
        assert len(rows) == message.n
        self._rows.add(message.request, rows)

    def cancel(self, request: int) -> None:
        """Forget a row and tell the engine, if it has not ended. Idempotent, never raises."""
        if self._rows.remove(request):
            self._tell(Cancel(request))

    def finish(self, request: int, tokens_kept: int) -> None:
        """End a row normally after `tokens_kept` tokens, and forget it. Never raises."""
        if self._rows.remove(request):
            self._tell(Finish(request, tokens_kept))

    def grant(self, request: int, tokens: int) -> None:
        """Let the rows that were submitted with `request` have `tokens` more. Never raises."""
        self._tell(Credit(request, tokens))

    def reprioritise(self, request: int, priority: int) -> None:
        """Give a row that has not ended another priority. Never raises."""
        if request in self._rows:
            self._tell(Reprioritise(request, priority))

    def set_deadline(self, request: int, deadline_s: float | None) -> None:
        """Give a row that has not ended another deadline, None being none. Never raises."""
        if request in self._rows:
            self._tell(SetDeadline(request, deadline_s))

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
        if self.failure is None and self.counters.received < self._sent:
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
        """Send without waiting. The engine is silent until a frame says that it has handled this.

        Raises:
            EngineUnavailable: the engine is dead.
        """
        self._write(message)
        self._sent += 1
        if self._at_rest:
            self._at_rest, self._heard_s = False, time.monotonic()

    def close(self) -> None:
        """Ask the engine to leave, and close the connection once that is sent. Idempotent."""
        if self.failure is None and self._transport is not None and not self._closing:
            self._closing = True
            self._write(Shutdown())
            self._transport.close()

    def _tell(self, message: ToEngine) -> None:
        """Send what a dead engine need not know."""
        if self.failure is None:
            self.send(message)

    def _refuse_unless_serving(self) -> None:
        if not self.is_serving:
            raise EngineUnavailable(self.failure or "The engine is still starting.")

    def _write(self, message: ToEngine) -> None:
        if self.failure is not None or self._transport is None:
            raise EngineUnavailable(self.failure or _GONE)
        self._transport.write(encode(message))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._heard_s = time.monotonic()
        try:
            for message in self._reader.feed(data):
                self._dispatch(message)
        except FrameError as error:
            self._fail(f"The engine sent what we cannot read: {error}")

    def eof_received(self) -> bool:
        return False  # close our half too

    def connection_lost(self, error: Exception | None) -> None:
        self._fail("The service is shutting down." if self._closing else _GONE)
        if not self._lost.done():
            self._lost.set_result(None)

    # messages

    def _dispatch(self, message: ToFront) -> None:
        match message:
            case Step():
                self._on_step(message)
            case Failed():
                self._on_failed(message)
            case Ready():
                if not self._ready.done():
                    self._ready.set_result(message)
            case PoliciesAnswer() | PoliciesState():
                self._questions.answer(message)
            case Progress():
                for callback in self._on_progress:
                    callback(message)

    def _on_failed(self, failed: Failed) -> None:
        if failed.request is None:
            self._fail(failed.message)
        else:
            self._rows.fail(failed.request, failed.message)

    def _on_step(self, step: Step) -> None:
        news = read_news(step)
        self.counters = step.counters
        for callback in self._on_counters:
            callback(step.counters)
        if step.hook_uses:
            self.hook_uses = step.hook_uses
        if step.policy_faults:
            self.policy_faults = step.policy_faults
        # A frame may have left before the engine read what we sent last
        self._at_rest = step.counters.at_rest and step.counters.received == self._sent
        self._rows.hand_out(news, step.prompt_scores, step.decisions)
        if step.decisions:
            self._show(step.decisions)
        self._questions.has_handled(step.counters.received)

    def _show(self, decisions: Sequence[Decision]) -> None:
        for callback in self._on_decisions:
            try:
                callback(decisions)
            except Exception:
                logger.exception("decision_watcher_failed")

    def _fail(self, reason: str) -> None:
        """The engine is dead: everybody who waits is told, once."""
        if self.failure is not None:
            return
        self.failure = reason
        if self.limits is not None and not self._closing:  # who started it tells of a start-up
            logger.error("engine_lost", reason=reason, rows=len(self._rows))
        if not self._ready.done():
            self._ready.set_exception(EngineUnavailable(reason))
            self._ready.exception()  # seen: nobody need be waiting
        self._questions.fail(reason)
        self._rows.fail_all(reason)
        if self._transport is not None:
            self._transport.close()
