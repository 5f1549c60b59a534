"""Whoever reads the output may leave, and the disk may be full: neither is a traceback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

from cadenza.cli.main import main
from tests.cli.test_live_policies import Service, service  # noqa: F401 - a fixture

LOCAL = [("list",), ("list", "--json"), ("show", "fcfs"), ("check", "cadenza.policies.markers")]
LIVE = [
    ("list",),
    ("list", "--json"),
    ("use", "slo"),
    ("release", "fcfs"),
    ("shadow",),
    ("shadow", "slo"),
    ("shadow", "--off"),
]


@contextmanager
def without_reader() -> Iterator[TextIO]:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as out:
        yield out


@contextmanager
def full_disk() -> Iterator[TextIO]:
    with open("/dev/full", "w", encoding="utf-8") as out:
        yield out


def status_and_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, output, *arguments: str
) -> tuple[int, str]:
    with output() as out:
        monkeypatch.setattr("sys.stdout", out)
        with pytest.raises(SystemExit) as left:
            main(arguments)
    assert isinstance(left.value.code, int)
    return left.value.code, capsys.readouterr().err


@pytest.mark.parametrize("command", LOCAL, ids=" ".join)
def test_nobody_reads(capsys, monkeypatch, command: tuple[str, ...]):
    told = status_and_error(capsys, monkeypatch, without_reader, "policies", *command)
    assert told == (141, "")


@pytest.mark.parametrize("command", LIVE, ids=" ".join)
def test_nobody_reads_of_a_service(capsys, monkeypatch, service: Service, command):  # noqa: F811
    arguments = ("policies", *command, "--server", service.url)
    assert status_and_error(capsys, monkeypatch, without_reader, *arguments) == (141, "")


@pytest.mark.parametrize("arguments", [("--help",), ("policies", "list", "--help"), ("--version",)])
def test_nobody_reads_the_help(capsys, monkeypatch, arguments: tuple[str, ...]):
    _, error = status_and_error(capsys, monkeypatch, without_reader, *arguments)
    assert error == ""


def test_the_disk_is_full(capsys, monkeypatch):
    told = status_and_error(capsys, monkeypatch, full_disk, "policies", "list")
    assert told == (1, "cadenza: the output cannot be written: No space left on device\n")


def test_nothing_stays_open_that_takes_what_is_left(capsys, monkeypatch):
    before = os.listdir("/proc/self/fd")
    status_and_error(capsys, monkeypatch, full_disk, "policies", "list")
    assert os.listdir("/proc/self/fd") == before
