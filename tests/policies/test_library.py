"""Policies that appear while the service runs, and those that stay what they are."""

from __future__ import annotations

import builtins
import gc
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from cadenza.policies.builtin import BUILTIN
from cadenza.policies.contract import ENGINE_HOOKS
from cadenza.policies.errors import ProfileError
from cadenza.policies.library import Library, prepare
from cadenza.policies.profile import Profile
from tests.policies.plugins import install, policy_module

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
    library.settle(before)
    assert library.stale == set()
    write(tmp_path, "first", more="# edited\n")

    assert library.stale == {"first"}
    with pytest.raises(ProfileError, match=r"'first': its file .* has changed .* restart"):
        library.profile({"order_admissions": ("first",)}, {})
    after = library.profile({"order_admissions": ("first",)}, {}, before=before)
    assert "first" in after.kept
    assert library.profile({}, {}).names["order_admissions"] == "fcfs"

    write(tmp_path, "first")
    assert library.profile({"order_admissions": ("first",)}, {}), "it is what was loaded again"


def test_a_file_that_is_gone_may_still_be_chosen_where_it_has_decided(tmp_path: Path):
    write(tmp_path, "first")
    library = Library(tmp_path, ())
    library.settle(library.profile({"order_admissions": ("first",)}, {}))
    (tmp_path / "first.py").unlink()

    assert library.profile({"order_admissions": ("first",)}, {}).policies
    assert "first" in library.present.policies


CHOSEN = {"order_admissions": ("first",)}


def test_what_was_refused_is_loaded_anew_once_its_file_has_changed(tmp_path: Path):
    source = HEAD.format(name="first")
    (tmp_path / "first.py").write_text(source.replace("waiting.arrival", "waiting.arival"))
    library = Library(tmp_path, ())
    with pytest.raises(ProfileError, match="no attribute 'arival'"):
        library.tried(CHOSEN, {}, ENGINE_HOOKS)
    (tmp_path / "first.py").write_text(source)

    assert library.stale == set(), "no restart is needed"
    assert library.tried(CHOSEN, {}, ENGINE_HOOKS).names["order_admissions"] == "first"
    (tmp_path / "first.py").write_text("import nothing_like_that")
    with pytest.raises(ProfileError, match="fails to import"):
        library.profile(CHOSEN, {})
    assert "first" not in library.catalog.policies, "nobody is given what the file said before"


def test_a_file_that_has_decided_stays_whole(tmp_path: Path):
    """Two classes of one module belong together."""
    second = HEAD.format(name="second").replace("class Backwards", "class Second")
    write(tmp_path, "first", more=second)
    library = Library(tmp_path, ())
    library.settle(library.profile(CHOSEN, {}))
    write(tmp_path, "first", more=second + "# edited\n")

    with pytest.raises(ProfileError, match=r"'second': its file .* has changed .* restart"):
        library.profile({"order_admissions": ("second",)}, {})


def test_what_never_decided_and_is_gone_is_forgotten(tmp_path: Path):
    write(tmp_path, "first")
    library = Library(tmp_path, ())
    (tmp_path / "first.py").unlink()

    assert "first" not in library.present.policies
    assert library.present.policies.keys() == BUILTIN.keys()
    with pytest.raises(ProfileError, match="there is no policy 'first'"):
        library.profile(CHOSEN, {})
    assert "first" not in library.catalog.policies


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with a distribution, whose module is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "acme", {"acme": "acme_mod"}, {"acme_mod": policy_module("first")})
    yield tmp_path
    sys.modules.pop("acme_mod", None)


def upgrade(site: Path) -> None:
    (site / "acme_mod.py").write_text(policy_module("first") + "# edited\n")
    (site / "acme-1.5.dist-info").rename(site / "acme-1.6.dist-info")
    metadata = site / "acme-1.6.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.5", "1.6"))


def test_a_newer_distribution_is_loaded_where_the_older_one_never_decided(site: Path):
    library = Library(None, ("acme",))
    before = library.catalog.policies["first"]
    upgrade(site)

    library.profile(CHOSEN, {})

    after = library.catalog.policies["first"]
    assert (before.version, after.version) == ("1.5", "1.6")
    assert before.cls is not after.cls


def test_a_newer_distribution_is_told_where_the_older_one_has_decided(site: Path):
    library = Library(None, ("acme",))
    library.settle(library.profile(CHOSEN, {}))
    upgrade(site)

    wanted = "policy 'first': acme was 1.5 when it was loaded, 1.6 is installed; restart"
    with pytest.raises(ProfileError, match=wanted):
        library.profile(CHOSEN, {})


def test_a_class_that_comes_again_is_not_taken_for_what_its_file_says_now(
    site: Path, monkeypatch: pytest.MonkeyPatch
):
    """A module that keeps classes elsewhere cannot be run anew."""
    library = Library(None, ("acme",))
    module = sys.modules["acme_mod"]
    upgrade(site)
    again = lambda _: sys.modules.setdefault("acme_mod", module)  # noqa: E731
    monkeypatch.setattr(EntryPoint, "load", again)

    with pytest.raises(ProfileError, match="restart"):
        library.profile(CHOSEN, {})


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
    told = r"'first': front and engine .* different versions .*; choose it again"
    with pytest.raises(ProfileError, match=told):
        late.profile(chosen, {}, digests=digests)
    late.settle(late.profile(chosen, {}))
    with pytest.raises(ProfileError, match=r"different versions .*; restart the service"):
        late.profile(chosen, {}, digests=digests)
