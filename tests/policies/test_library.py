"""Policies that appear while the service runs, and those that stay what they are."""

from __future__ import annotations

import builtins
import gc
import sys
import threading
from pathlib import Path

import pytest

from cadenza.policies.errors import ProfileError
from cadenza.policies.library import Library, prepare
from cadenza.policies.profile import Profile
from tests.policies.plugins import policy_module

HEAD = policy_module("{name}").split("@hookimpl\ndef register")[0]


def write(folder: Path, name: str, more: str = "") -> None:
    (folder / f"{name.replace('-', '_')}.py").write_text(HEAD.format(name=name) + more)


@pytest.mark.parametrize("error", [ValueError("no"), ProfileError("no"), SystemExit("no")])
def test_nothing_of_what_failed_aside_ends_elsewhere(error: BaseException):
    """The error and the frame hold each other."""
    threads: list[threading.Thread] = []

    class Ends:
        def __del__(self) -> None:
            threads.append(threading.current_thread())

    def build() -> Profile:
        made, kept = Ends(), [error]  # noqa: F841 - its frame holds them
        raise error

    gc.disable()
    try:
        preparation = prepare(build)
        with pytest.raises(ProfileError, match="no") as raised:
            preparation.future.result(10)
    finally:
        gc.enable()

    assert threads == [preparation._thread]
    assert raised.value.__context__ is None


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


def test_an_edited_file_is_refused_where_it_would_be_new(tmp_path: Path):
    write(tmp_path, "first")
    library = Library(tmp_path, ())
    before = library.profile({"order_admissions": ("first",)}, {})
    assert library.catalog.stale == set()
    write(tmp_path, "first", more="# edited\n")

    assert library.catalog.stale == {"first"}
    with pytest.raises(ProfileError, match=r"'first': its file .* has changed .* restart"):
        library.profile({"order_admissions": ("first",)}, {})
    after = library.profile({"order_admissions": ("first",)}, {}, before=before)
    assert "first" in after.kept
    assert library.profile({}, {}).names["order_admissions"] == "fcfs"

    write(tmp_path, "first")
    assert library.profile({"order_admissions": ("first",)}, {}), "it is what was loaded again"


def test_a_file_that_is_gone_may_still_be_chosen(tmp_path: Path):
    write(tmp_path, "first")
    library = Library(tmp_path, ())
    (tmp_path / "first.py").unlink()

    assert library.profile({"order_admissions": ("first",)}, {}).policies


def test_files_that_have_not_changed_are_not_run_again(tmp_path: Path):
    count = "import builtins\nbuiltins.num_runs = getattr(builtins, 'num_runs', 0) + 1\n"
    write(tmp_path, "first", more=count)
    library = Library(tmp_path, ())
    write(tmp_path, "second")
    library.profile({"order_admissions": ("second",)}, {})
    try:
        assert builtins.num_runs == 1  # type: ignore[attr-defined]
    finally:
        del builtins.num_runs  # type: ignore[attr-defined]
    (tmp_path / "third.py").write_text(HEAD.format(name="first"))

    with pytest.raises(ProfileError, match=r"'first'.* has the name of another one"):
        library.profile({"order_admissions": ("third",)}, {})


def test_an_edited_file_that_fails_leaves_the_module_that_is_in_use(tmp_path: Path):
    write(tmp_path, "first")
    library = Library(tmp_path, ())
    module = sys.modules["cadenza_plugin_first"]
    write(tmp_path, "first", more="import nothing_like_that\n")

    with pytest.raises(ProfileError, match="fails to import"):
        library.profile({"order_admissions": ("nope",)}, {})

    assert sys.modules["cadenza_plugin_first"] is module


def test_processes_that_loaded_different_versions_are_told_apart(tmp_path: Path):
    write(tmp_path, "first")
    chosen = {"order_admissions": ("first",)}
    front, engine = Library(tmp_path, ()), Library(tmp_path, ())
    digests = front.digests(front.profile(chosen, {}))
    assert [*digests] == ["first"], "those that are built in have none"
    assert engine.profile(chosen, {}, digests=digests)

    write(tmp_path, "first", more="# edited\n")
    late = Library(tmp_path, ())
    with pytest.raises(ProfileError, match=r"'first': front and engine .* different versions"):
        late.profile(chosen, {}, digests=digests)
