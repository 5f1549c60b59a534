"""An engine process in reserve, so that a restart need not wait for libraries to be imported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from cadenza.service.engine_process import EngineProcess, start_engine

AFTER_S = 10.0  # of serving: first come the clients, who want the cores

_log = structlog.get_logger(__name__)


class Standby:
    """Keeps one process that has imported everything and loaded nothing, while engines serve."""

    def __init__(self, start: Callable[[], EngineProcess] = start_engine) -> None:
        self._start = start
        self._process: EngineProcess | None = None
        self._timer: asyncio.TimerHandle | None = None

    def note_serving(self, is_serving: bool) -> None:
        """An engine has begun to serve, or ceased to: there is one in reserve some time later."""
        self._forget_timer()
        if is_serving:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(AFTER_S, self._prepare)

    def take(self) -> EngineProcess:
        """The one in reserve if it still lives, else one that begins now. The caller's from now on.

        Raises:
            OSError: there is none, and none can be started.
        """
        process, self._process = self._process, None
        if process is not None and process.exit_status is None:
            return process
        if process is not None:
            process.end()
        return self._start()

    def end(self) -> None:
        """Have none any more. Idempotent."""
        self._forget_timer()
        if self._process is not None:
            self._process.end()
            self._process = None

    def _prepare(self) -> None:
        if self._process is not None:
            return
        try:
            self._process = self._start()
        except OSError as error:  # then a restart takes longer
            _log.warning("no_standby", reason=str(error))

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
