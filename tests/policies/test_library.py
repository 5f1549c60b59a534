"""Policies that appear while the service runs, and those that stay what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadenza.policies.errors import ProfileError
from cadenza.policies.library import Library
from tests.policies.plugins import policy_module

HEAD = policy_module("{name}").split("@hookimpl\ndef register")[0]


def write(folder: Path, name: str) -> None:
    (folder / f"{name.replace('-', '_')}.py").write_text(HEAD.format(name=name))


def test_a_new_file_is_found_when_it_is_named(tmp_path: Path):
    write(tmp_path, "first")
    library = Library(tmp_path, ())
    before = library.profile({"order_admissions": ("first",)}, {})
    write(tmp_path, "second")

    after = library.profile({"order_admissions": ("second",), "observer": ()}, {}, before=before)
    again = library.profile({"order_admissions": ("first",)}, {}, before=before)

    assert after.names["order_admissions"] == "second"
    assert "first" in again.kept, "its class is still the one that it was"


def test_a_broken_file_beside_it_is_told_once(tmp_path: Path):
    library = Library(tmp_path, ())
    write(tmp_path, "good")
    (tmp_path / "bad.py").write_text("import nothing_like_that")

    with pytest.raises(ProfileError, match=r"plugin 'bad' .* fails to import"):
        library.profile({"order_admissions": ("good",)}, {})
    (tmp_path / "bad.py").unlink()

    assert library.profile({"order_admissions": ("good",)}, {}).names["order_admissions"] == "good"


def test_one_that_nobody_knows_is_refused_with_all_other_faults(tmp_path: Path):
    with pytest.raises(ProfileError) as caught:
        Library(tmp_path, ()).profile(
            {"order_admissions": ("nope",), "select_victims": ("fcfs",)}, {}, faults=("a",)
        )

    assert len(caught.value.faults) == 3
