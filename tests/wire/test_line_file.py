"""Whole lines, in files that were left in any state."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cadenza.wire.line_file import LineFile, OtherContent

HEAD = {"format": "test"}
WHOLE = '{"format":"test"}\n{"a":1}\n'


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Files may have 40 bytes."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("left", ["", WHOLE, WHOLE + '{"a', WHOLE + "x" * 200_000])
def test_half_a_line_is_not_gone_on_in(tmp_path: Path, left: str):
    path = tmp_path / "lines"
    path.write_text(left)
    file = LineFile(path, HEAD)
    file.write({"b": 2})
    file.close()

    assert path.read_text() == (WHOLE if left else '{"format":"test"}\n') + '{"b":2}\n'


def test_another_file_is_left_alone_unless_it_is_to_be_new(tmp_path: Path):
    path = tmp_path / "lines"
    path.write_text("mine\nhalf")
    with pytest.raises(OtherContent):
        LineFile(path, HEAD)
    assert path.read_text() == "mine\nhalf"

    LineFile(path, HEAD, is_new=True).close()
    assert path.read_text() == '{"format":"test"}\n'


@pytest.mark.usefixtures("small_disk")
def test_a_line_that_has_no_room_is_not_begun(tmp_path: Path):
    path = tmp_path / "lines"
    file = LineFile(path, HEAD)
    file.write({"a": 1})
    with pytest.raises(OSError, match="No space left"):
        file.write({"too": "long for what is left"})
    file.close()

    assert path.read_text() == WHOLE
