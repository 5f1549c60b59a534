"""Both processes' logging."""

from __future__ import annotations

import json
import logging

import pytest
import structlog

from cadenza.wire.logging import configure_logging


def test_both_kinds_of_logger_write_one_json_object_a_line(capsys):
    configure_logging("info", json=True)
    structlog.get_logger("ours").info("said", number=1)
    structlog.get_logger("ours").debug("unsaid")
    logging.getLogger("theirs").warning("also %s", "said")
    try:
        raise KeyError("gone")
    except KeyError:
        structlog.get_logger("ours").exception("failed")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]

    assert [line["event"] for line in lines] == ["said", "also said", "failed"]
    assert lines[0]["number"] == 1
    assert [line["logger"] for line in lines] == ["ours", "theirs", "ours"]
    assert "KeyError" in lines[2]["exception"]


def test_configuring_again_replaces(capsys):
    configure_logging("info", json=True)
    configure_logging("info", json=False)
    structlog.get_logger("ours").warning("once")

    assert capsys.readouterr().err.count("once") == 1


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="loud"):
        configure_logging("loud")
