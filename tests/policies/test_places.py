"""Where foreign code raised, told by its innermost line."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cadenza.policies.errors import describe, reason_of, trace
from cadenza.policies.places import raised_at

HELPER = """
def look_up(weights, tenant):
    return weights[tenant]
"""
POLICY = """
import json


from {helper} import look_up

def raises():
    raise KeyError("gold")

def calls_its_own():
    look_up({{}}, "gold")

def calls_a_library():
    json.loads("{{")

def recurses(depth=900):
    return recurses(depth - 1) if depth else 1 / 0

exec("def made(): raise ValueError")
"""


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Any]:
    """A policy's module beside a helper's, neither installed."""
    (tmp_path / "place_helper.py").write_text(HELPER)
    (tmp_path / "place_policy.py").write_text(POLICY.format(helper="place_helper"))
    yield from _imported(tmp_path, "place_policy")


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Any]:
    """A package in a place for installed ones, and a library there."""
    site = tmp_path / "site-packages"
    (site / "place_package").mkdir(parents=True)
    (site / "place_library.py").write_text(HELPER)
    (site / "place_package" / "own.py").write_text(HELPER)
    (site / "place_package" / "__init__.py").write_text(
        "from place_library import look_up as library\n"
        "from place_package.own import look_up\n"
        "def calls_its_own(): look_up({}, 'gold')\n"
        "def calls_a_library(): library({}, 'gold')\n"
    )
    yield from _imported(site, "place_package")


def _imported(folder: Path, name: str) -> Iterator[Any]:
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        for loaded in [each for each in sys.modules if each.startswith("place_")]:
            del sys.modules[loaded]


def error_of(module: Any, function: str) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011
        getattr(module, function)()
    return raised.value


@pytest.mark.parametrize(
    ("function", "place"),
    [
        ("raises", "place_policy.py:8 in raises"),
        ("calls_its_own", "place_helper.py:3 in look_up"),
        ("calls_a_library", "place_policy.py:14 in calls_a_library"),
        ("recurses", "place_policy.py:17 in recurses"),
    ],
)
def test_an_error_says_where_it_was_raised(written: Any, function: str, place: str):
    error = error_of(written, function)
    # This file's line is foreign as well, and called it
    assert raised_at(error) == place
    assert describe(error).endswith(f" at {place}")


@pytest.mark.parametrize(
    ("function", "place"),
    [
        ("calls_its_own", "own.py:3 in look_up"),
        ("calls_a_library", "place_package/__init__.py:4 in calls_a_library"),
    ],
)
def test_of_installed_code_a_policys_own_package_counts(installed: Any, function: str, place: str):
    error = error_of(installed, function)
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # from the package on
    told = raised_at(error)
    assert told == place


def test_what_exec_has_made_is_told_by_whoever_called_it(written: Any):
    error = error_of(written, "made")
    assert raised_at(error).startswith("test_places.py:")


def test_an_error_that_nobody_foreign_raised_has_no_place():
    assert raised_at(ValueError("never raised")) == ""
    assert describe(ValueError("no")) == "ValueError('no')"


def test_the_type_of_an_error_is_told_in_a_sentence(written: Any):
    told = reason_of(error_of(written, "raises"))
    assert told == "KeyError: 'gold' at place_policy.py:8 in raises"


def test_the_way_of_an_error_is_bounded(written: Any):
    steps = trace(error_of(written, "recurses")).split(" > ")

    assert len(steps) == 20
    assert steps[0] == steps[-1] == f"{written.__file__}:17 in recurses"
