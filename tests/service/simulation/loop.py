"""An event loop whose seed decides what runs next, and whose clock goes only as it says.

Each turn runs one callback, any of those that are ready: what asyncio's own loop would run in order
of their coming. If none is, time goes on to the next timer. So tasks meet in every order that they
may have to stand, and hours pass in no time.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, Protocol, TypeVar

_MOST_TURNS = 200_000  # of a life, which takes some thousands
_MOST_TURNS_TO_END = 10_000

T = TypeVar("T")


class SocketEnd(Protocol):
    """**Protocol:** what stands for a connected socket here."""

    def attach(self, protocol: Any) -> asyncio.BaseTransport:
        """The transport by which the protocol writes; what comes is passed to it."""


class _Task(asyncio.Task[Any]):
    """Sets of tasks are gone through in the same order each time, wherever the tasks lie."""

    def __init__(self, coro: Any, *, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class SeededLoop(asyncio.AbstractEventLoop):
    """As much of an event loop as the service needs that has no sockets."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now_s = 1000.0
        self.errors: list[BaseException | str] = []  # that nobody else has heard of
        self.num_turns = 0
        self._ready: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = itertools.count()
        self._task_numbers = itertools.count()
        self._signals: dict[int, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        self._is_running = False

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """What `main` returns. Tasks that are left then are cancelled.

        Raises:
            AssertionError: nothing is left to happen, or far too much happens.
            BaseException: what a callback raised, or a task that nobody waits for.
        """
        asyncio.events._set_running_loop(self)
        self._is_running = True
        task = self.create_task(main)
        try:
            while not (task.done() or self.errors):
                self._turn()
            self._raise_error()
            return task.result()
        finally:
            self._cancel_all()
            self._is_running = False
            asyncio.events._set_running_loop(None)

    def _raise_error(self) -> None:
        for error in self.errors:
            raise error if isinstance(error, BaseException) else AssertionError(error)

    def _cancel_all(self) -> None:
        most_turns = self.num_turns + _MOST_TURNS_TO_END
        for task in sorted(asyncio.all_tasks(self), key=hash):
            task.cancel()
        while asyncio.all_tasks(self) and self._has_more and self.num_turns < most_turns:
            self._turn()

    @property
    def _has_more(self) -> bool:
        return bool(self._ready or self._timers)

    def jump(self, seconds: float) -> None:
        """Let time pass in which nothing runs here, as when a machine is stopped."""
        self.now_s += seconds

    def signal(self, number: int) -> None:
        """Let a signal reach the process."""
        callback, arguments = self._signals[number]
        self.call_soon(callback, *arguments)

    def _turn(self) -> None:
        self.num_turns += 1
        assert self.num_turns < _MOST_TURNS, "it does not end"
        ready, timers = self._ready, self._timers
        while timers and (timers[0][0] <= self.now_s or timers[0][2].cancelled()):
            timer = heapq.heappop(timers)[2]
            if not timer.cancelled():
                ready.append(timer)
        if ready:
            index = int(self.chance.random() * len(ready))
            handle, ready[index] = ready[index], ready[-1]
            del ready[-1]
            if not handle.cancelled():
                handle._run()
        else:
            assert timers, "everybody waits for something that nobody will do"
            self.now_s = timers[0][0]

    # asyncio.AbstractEventLoop

    def time(self) -> float:
        return self.now_s

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # it is passed over when its time comes

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return _Task(coro, number=next(self._task_numbers), loop=self, **options)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Elsewhere it takes some time, and what happens there happens at once."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if future.done():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_later(0.01 * self.chance.random(), work)
        return future

    async def create_unix_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], *, sock: SocketEnd
    ) -> tuple[asyncio.BaseTransport, Any]:
        protocol = protocol_factory()
        transport = sock.attach(protocol)
        protocol.connection_made(transport)
        return transport, protocol

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:
        self._signals[sig] = callback, args

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context.get("exception") or context["message"])

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return False

    def get_debug(self) -> bool:
        return False
