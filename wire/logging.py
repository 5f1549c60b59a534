"""Logging of both processes: structlog in front, the standard library's loggers pulled in.

Lines go to stderr: JSON when it is no terminal, coloured text when it is. Nothing here or in its
callers may log what a client wrote or what a model answered.
"""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import Processor

QUIET = ("httpx", "httpcore", "asyncio", "uvicorn.access")  # loggers that say little of use


def configure_logging(level: str = "info", *, json: bool | None = None) -> None:
    """Set up this process's logging. `json` None: JSON unless stderr is a terminal.

    Calling it again replaces the set-up.

    Raises:
        ValueError: `level` is no level of the standard library's.
    """
    threshold = _threshold(level)
    as_json = not sys.stderr.isatty() if json is None else json
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(as_json))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    structlog.configure(
        processors=[*_shared(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _threshold(level: str) -> int:
    threshold = logging.getLevelNamesMapping().get(level.upper())
    if threshold is None:
        raise ValueError(f"{level!r} is no log level")
    return threshold


def _shared() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _formatter(as_json: bool) -> logging.Formatter:
    rendered: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if as_json:
        rendered += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # the default formatter prints local variables where rich is installed: prompts, for one
        plain = structlog.dev.plain_traceback
        rendered.append(structlog.dev.ConsoleRenderer(exception_formatter=plain))
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=_shared(), processors=rendered)
