"""Errors quote whoever made them, and are bounded all the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cadenza.policies.errors import ProfileError, describe, quoted, said, unknown


def test_of_very_many_faults_the_first_are_told():
    error = ProfileError(*(f"fault {index}" for index in range(5000)))

    lines = str(error).splitlines()
    assert lines[:2] == ["5000 faults:", "  - fault 0"]
    assert lines[-2:] == ["  - fault 19", "  - and 4980 more"]
    assert len(error.faults) == 5000


def test_as_many_as_are_told_need_no_remainder():
    assert str(ProfileError(*["a"] * 20)).splitlines()[-1] == "  - a"


@pytest.mark.parametrize("num", [1, 2])
def test_of_a_very_long_fault_the_beginning_is_told(num: int):
    told = str(ProfileError(*["x" * 100_000] * num))
    assert len(told) < 1020 * num + 20
    assert told.endswith("x…")


def test_names_are_quoted_as_far_as_anybody_reads():
    told = unknown("policy", "edg" * 20_000, ["edf"], "policies")
    assert told.startswith("there is no policy 'edgedg")
    assert told.endswith("…; policies are edf")
    assert len(told) < 150


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("a", "'a'"),
        ("a" * 78, "'" + "a" * 78 + "'"),
        ("a" * 79, "'" + "a" * 78 + "…"),
    ],
)
def test_what_is_quoted(value: object, told: str):
    assert quoted(value) == told


def test_a_number_that_python_does_not_write_is_quoted():
    assert quoted(10**5000) == "an unreadable int"


class Sly(str):
    def __getitem__(self, key: Any) -> Any:
        raise SystemExit


class Repr(Exception):
    def __init__(self, text: Any) -> None:
        self.text = text

    def __repr__(self) -> str:
        if self.text is None:
            raise SystemExit
        return self.text  # type: ignore[no-any-return]


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise SystemExit


class Untold(Repr, metaclass=Nameless):
    pass


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no"), "ValueError('no')"),
        (Repr("x" * 5000), "x" * 200),
        (Repr(Sly("sly")), "sly"),
        (Repr(None), "Repr"),
        (Repr(5), "Repr"),
        (Untold(None), "Untold"),
        (Repr("two\nlines\x1b[31m"), "two\\nlines\\x1b[31m"),
        (Repr("half a character \ud83d"), "half a character \\ud83d"),
        (Repr("größe 漢字"), "größe 漢字"),
    ],
)
def test_an_error_is_told_in_a_line_that_can_be_sent(error: Exception, told: str):
    text = describe(error)

    assert text == told
    assert type(text) is str
    assert json.dumps(text, ensure_ascii=False).encode()


def test_foreign_text_is_made_printable():
    assert str(ProfileError("a\nb", "\udcff")) == "2 faults:\n  - a\\nb\n  - \\udcff"


def test_an_error_that_cannot_say_what_it_is_is_named():
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert said(ValueError("no")) == "no"
    assert said(Mute()) == "Mute()"
