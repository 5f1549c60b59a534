"""What a test has to tell besides that it has passed; and logging that no test leaves changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import structlog

TOLD = "told"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that is run within a test sets up logging for its process, which is the tests'."""
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    yield
    if structlog.is_configured():
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()


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
