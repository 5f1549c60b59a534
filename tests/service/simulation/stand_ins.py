"""What stands for processes, sockets, servers, signals, the clock and the log of the service."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, Never
from unittest import mock

import structlog

from cadenza.service import front, servers, standby
from cadenza.service.engine_process import EngineProcess
from cadenza.service.standby import Standby
from cadenza.testing import fake_runner

from .asked import VOCABULARY
from .calls import MemoryServer, NoServer
from .clock import all_clocks_are
from .engine import Engine
from .loop import SeededLoop
from .mischief import Guard

_STANDBY_AFTER_S = 0.3  # sooner than in earnest, as lives are short


class _Reserve(Standby):
    """Says which engine is taken."""

    def __init__(
        self, start: Callable[[], Engine], on_taken: Callable[[EngineProcess], None]
    ) -> None:
        super().__init__(start)  # type: ignore[arg-type]
        self._on_taken = on_taken

    def take(self) -> EngineProcess:
        process = super().take()
        self._on_taken(process)
        return process


@contextmanager
def stand_in_for_processes(
    loop: SeededLoop,
    start_engine: Callable[[], Engine],
    on_taken: Callable[[EngineProcess], None],
    open_server: Callable[..., MemoryServer],
) -> Iterator[None]:
    """Have the front live on `loop`, with engines and a server that are made as these say."""
    socket = SimpleNamespace(getsockname=lambda: ("127.0.0.1", 1))
    replaced = (
        (front, "Standby", lambda: _Reserve(start_engine, on_taken)),
        (front, "SignalGuard", lambda: Guard(loop)),
        (servers, "listen", lambda *_: [socket]),
        (servers, "build_app", lambda *_, **__: None),
        (servers, "HttpServer", NoServer),
        (servers, "GrpcServer", open_server),
    )
    with ExitStack() as patches:
        for module, name, stand_in in replaced:
            patches.enter_context(mock.patch.object(module, name, stand_in))
        patches.enter_context(mock.patch.object(standby, "AFTER_S", _STANDBY_AFTER_S))
        patches.enter_context(mock.patch.object(fake_runner, "VOCABULARY", VOCABULARY))
        patches.enter_context(all_clocks_are(loop.time))
        patches.enter_context(_logging_to(loop))
        yield


@contextmanager
def _logging_to(loop: SeededLoop) -> Iterator[None]:
    """What would be logged with a traceback is a mistake of ours."""
    before = structlog.get_config()

    def hear(logger: Any, name: str, event: Any) -> Never:
        if name == "exception" or event.get("exc_info"):
            loop.errors.append(f"logged: {event}")
        raise structlog.DropEvent

    structlog.configure(
        processors=[structlog.processors.format_exc_info, hear],
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
    )
    try:
        yield
    finally:
        structlog.configure(**before)
