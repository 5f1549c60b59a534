"""The example distribution: found, listed and obeyed once it is installed, and tested by itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.policies.plugins import install

EXAMPLE = Path(__file__).parents[2] / "examples" / "cadenza-policy-weighted-tenants"
MODULE = "cadenza_policy_weighted_tenants"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The example as an installer would leave it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    source = (EXAMPLE / f"{MODULE}.py").read_text()
    return install(tmp_path, project["name"], project["entry-points"]["cadenza"], {MODULE: source})


def python(site: Path, *arguments: str | Path) -> str:
    """What a fresh interpreter with `site` on its path writes to standard output."""
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "CADENZA_PLUGINS": "weighted-tenants"}
    done = subprocess.run(
        [sys.executable, "-P", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=site,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(site: Path) -> None:
    """It is listed with where it is from, would decide if chosen, and its own tests pass."""
    flags = ["list", "--json", "--policy", "order=weighted-tenants:anonymous_weight=0.5"]
    report = json.loads(python(site, "-m", "cadenza.cli", "policies", *flags))
    (policy,) = [each for each in report["policies"] if each["name"] == "weighted-tenants"]
    assert policy["source"] == "cadenza-policy-weighted-tenants"
    assert policy["active"] == ["order_admissions"]

    checked = python(
        site, "-m", "cadenza.cli", "policies", "check", "cadenza-policy-weighted-tenants"
    )
    assert checked == "weighted-tenants: order_admissions\nno faults\n"

    shutil.copytree(EXAMPLE / "tests", site / "its_tests")
    passed = python(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", site / "its_tests")
    assert "passed" in passed
    assert "skipped" not in passed


def test_the_example_is_found_listed_and_obeyed(site: Path):
    check(site)


@pytest.mark.extra
def test_the_example_can_be_installed_by_pip(tmp_path: Path):
    source, site = tmp_path / "source", tmp_path / "site"
    shutil.copytree(EXAMPLE, source)  # a build leaves folders behind
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *offline, "--target", site, source],
        check=True,
        timeout=110,
    )

    check(site)
