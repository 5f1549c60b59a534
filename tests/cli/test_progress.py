"""What a person sees while the engine loads."""

from __future__ import annotations

import io

import pytest

from cadenza.cli.progress import Progress
from cadenza.wire import messages

CLEAR = "\r\x1b[2K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def file() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def show(out: io.StringIO, *stages: messages.Progress) -> Progress:
    progress = Progress(out)
    for stage in stages:
        progress.show(stage)
    return progress


WEIGHTS = [messages.Progress("weights", done, 3) for done in range(1, 4)]


def test_a_file_gets_one_line_a_stage(file: io.StringIO):
    show(file, messages.Progress("libraries"), *WEIGHTS, messages.Progress("cache")).done()

    assert file.getvalue() == "  libraries\n  weights\n  cache\n"


def test_a_stage_that_comes_again_is_told_again(file: io.StringIO):
    show(file, messages.Progress("a"), messages.Progress("b"), messages.Progress("a"))

    assert file.getvalue() == "  a\n  b\n  a\n"


def test_a_terminal_gets_one_live_line(terminal: Terminal):
    show(terminal, messages.Progress("libraries"), *WEIGHTS)

    said = terminal.getvalue()
    assert "\n" not in said
    assert said.split(CLEAR) == [
        "",
        "  libraries",
        "  weights [######..............] 1/3",
        "  weights [#############.......] 2/3",
        "  weights [####################] 3/3",
    ]


def test_done_clears_the_live_line_once(terminal: Terminal):
    progress = show(terminal, *WEIGHTS)
    before = terminal.getvalue()

    progress.done()
    progress.done()

    assert terminal.getvalue() == before + CLEAR


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_done_without_a_stage_writes_nothing(kind: type[io.StringIO]):
    out = kind()

    Progress(out).done()

    assert out.getvalue() == ""


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_note_is_a_line_of_its_own(kind: type[io.StringIO]):
    out = kind()

    Progress(out).note("Loading tiny")

    assert out.getvalue() == "Loading tiny\n"


class ClosedPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_has_seen_enough_is_no_failure():
    progress = Progress(ClosedPipe())

    progress.note("Loading")
    progress.show(messages.Progress("weights", 1, 2))
    progress.done()
