"""What a test has to tell besides that it has passed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

TOLD = "told"


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
