"""Has another engine process go on when one is gone or hangs."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

import structlog
from msgspec.structs import replace

from cadenza.policies.blame import Culprit
from cadenza.policies.builtin import DEFAULTS
from cadenza.service.engine_client import EngineClient
from cadenza.service.engine_process import EngineProcess, start_engine
from cadenza.service.errors import EngineUnavailable
from cadenza.service.metrics import Metrics
from cadenza.service.watchdog import Watchdog
from cadenza.wire.messages import EngineConfig

MAX_RESTARTS = 5
WINDOW_S = 60.0

_RETRY_S = 1.0  # after a process could not even be started
_LAST_WORDS_S = 1.0  # for an engine that has exited or closed its connection
_GONE = "The engine process is gone."
_SPENT = (
    "The engine process is gone, and {} restarts within {:g} s are used up; the service gives up."
)

_log = structlog.get_logger(__name__)


class Supervisor:
    """Owns the engine processes behind one client, which `recovers`."""

    def __init__(
        self,
        client: EngineClient,
        process: EngineProcess,
        config: Callable[[], EngineConfig],
        metrics: Metrics,
        *,
        max_restarts: int = MAX_RESTARTS,
        start: Callable[[], EngineProcess] = start_engine,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch `process`, the client's first, and start others with what `config` says then.

        More than `max_restarts` within WINDOW_S of serving are not tried.
        """
        self.process = process  # the present one
        self._client = client
        self._config = config
        self._metrics = metrics
        self._max_restarts = max_restarts
        self._start = start
        self._clock = clock
        self._restarts_s: deque[float] = deque()  # by `_served_s`, within WINDOW_S
        self._served_s = 0.0  # for which engines served before the present one began or ended
        self._changed_s = 0.0  # when one did
        self._found_in: str | None = None  # the policy in whose hook others ended the latest engine

    async def run(self) -> None:
        """Serve until the client is closed or has failed, if need be because too many engines die.

        The process that is there then is left to whoever stops it.
        """
        client = self._client
        try:
            await client.ready()
        except EngineUnavailable:
            return  # what cannot start at all is not tried again; the client's failure says why
        self._changed_s = self._clock()
        client.watch_serving(self._note_serving)
        while True:
            hung = await self._lost()
            if client.failure is not None or client.is_closing:
                return
            await self._bury(0.0 if hung else _LAST_WORDS_S)
            process = await self._another()
            if process is None:
                client.fail(_SPENT.format(self._max_restarts, WINDOW_S))
                return
            self._metrics.engine_restarts += 1
            self.process = process
            await client.succeed(self.process.connection, self._config_again())

    def _config_again(self) -> EngineConfig:
        """With as many blocks as before, however much memory is free by now.

        With fewer, rows that were taken might not fit any more.
        """
        limits = self._client.limits
        assert limits is not None, "only what was ready once is replaced"
        return replace(self._config(), num_blocks=limits.num_blocks)

    async def _lost(self) -> bool:
        """Wait until the engine is gone, or hangs; returns whether it hangs."""
        loss, exit, hang = tasks = (
            asyncio.ensure_future(self._client.loss()),
            asyncio.ensure_future(self.process.wait()),
            asyncio.ensure_future(Watchdog(self._client, self._culprit).hang()),
        )
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if exit.done():  # its end of the connection closes once all that it said is read
                await asyncio.wait((loss,), timeout=_LAST_WORDS_S)
            self._client.break_off(hang.result() if hang.done() else _GONE)
            return hang.done()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _bury(self, grace_s: float) -> None:
        """See that the process is gone, with all memory that it had, and who is to blame."""
        process, culprit = self.process, self._culprit()
        status = await process.kill(grace_s)
        self._judge(culprit)
        _log.error("engine_ended", status=status, during=process.hook_under_way)

    def _culprit(self) -> Culprit | None:
        """The hook that the engine is in, unless it is one of ours, or anybody else stopped it."""
        culprit = self.process.culprit
        if culprit is None or culprit.policy in DEFAULTS.values() or self.process.is_stopped:
            return None
        return culprit

    def _judge(self, culprit: Culprit | None) -> None:
        """Blame the policy in whose hook the engine ended, unless it was there by chance.

        Others may end it in anybody's: an operator, or the system when memory runs out. Twice in a
        row in hooks of one policy is no chance, for it may be what takes the memory.
        """
        found_before, self._found_in = self._found_in, None
        if culprit is None:
            return
        if self.process.was_ended_by_others and culprit.policy != found_before:
            self._found_in = culprit.policy
        else:
            self._client.blame(culprit.policy, culprit.hook)

    async def _another(self) -> EngineProcess | None:
        """None: too many have been started, or could not be."""
        while self._may_restart():
            try:
                return self._start()
            except OSError as error:  # no descriptor or memory is left, perhaps for now
                _log.error("engine_not_started", reason=str(error))
                await asyncio.sleep(_RETRY_S)
        return None

    def _may_restart(self) -> bool:
        """Pauses do not count, or engines that take long to load could fail for ever."""
        while self._restarts_s and self._served_s - self._restarts_s[0] > WINDOW_S:
            self._restarts_s.popleft()
        if len(self._restarts_s) >= self._max_restarts:
            return False
        self._restarts_s.append(self._served_s)
        return True

    def _note_serving(self, is_serving: bool) -> None:
        now_s = self._clock()
        lasted_s, self._changed_s = now_s - self._changed_s, now_s
        if is_serving:
            self._metrics.engine_pause_s += lasted_s
            rows = len(self._client.work)
            _log.warning("engine_recovered", pause_s=round(lasted_s, 3), rows=rows)
        else:
            self._served_s += lasted_s
