"""What a test has to tell besides that it has passed; and what no test leaves changed."""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Callable, Iterator

import hypothesis
import pytest
import structlog

from cadenza.wire.logging import QUIET

TOLD = "told"

# A change is judged by the same examples each time; --hypothesis-profile=default draws new ones.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("same")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """What serves, or is run as a command, sets up logging for its process, which is the tests'."""
    root = logging.getLogger()
    handlers, kind = [*root.handlers], logging.getLoggerClass()
    loggers = [root, *map(logging.getLogger, QUIET)]
    before = [(logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (level, propagate) in zip(loggers, before, strict=True):
        logger.propagate = propagate
        if logger.level != level:
            logger.setLevel(level)
    if structlog.is_configured():
        root.handlers[:] = handlers
        logging.setLoggerClass(kind)
        structlog.reset_defaults()


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """What serves answers signals itself, up to the end of its process, which is the tests'."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    """What serves freezes its process's heap, which is the tests' where it runs within one."""
    threshold, frozen = gc.get_threshold(), gc.get_freeze_count()
    yield
    gc.enable()
    gc.set_threshold(*threshold)
    if gc.get_freeze_count() != frozen:
        gc.unfreeze()


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Print a line at the end of the session, whichever process the test runs in."""
    return lambda line: record_property(TOLD, line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                if name == TOLD:
                    terminalreporter.write_line(f"{report.nodeid}: {value}")
