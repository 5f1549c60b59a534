"""Planted faults are caught: `FAST_PROOF` fails with every mutant, and passes without one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.scheduler.mutants import FAST_PROOF, MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
PACKAGES = ("policies", "scheduler", "testing")
MOST_SECONDS = 60  # a mutant takes two to four on a free core
PROVE = """
import sys
from importlib import import_module

import pytest

copy, packages, *arguments = sys.argv[1:]
for package in packages.split():
    path = import_module(f"cadenza.{package}").__file__
    assert path == f"{copy}/cadenza/{package}/__init__.py", f"{path} is tested, not the copy"
sys.exit(pytest.main(arguments))
"""

Proof = subprocess.CompletedProcess[str]

# As it was, since pytest changes it while threads start processes
_ENVIRONMENT = dict(os.environ)


def prove(copy: Path, *options: str) -> Proof:
    """Run the fast proof on a copy of the packages."""
    paths = [path for path in _ENVIRONMENT.get("PYTHONPATH", "").split(os.pathsep) if path]
    return subprocess.run(
        [sys.executable, "-P", "-c", PROVE, str(copy), " ".join(PACKAGES), *options, *FAST_PROOF],
        cwd=ROOT,
        # Without what takes longer than to find most faults: other plugins, rewritten assertions
        env={
            **_ENVIRONMENT,
            "PYTHONPATH": os.pathsep.join([str(copy), *paths]),
            "PYTEST_ADDOPTS": "-p pytest_timeout -p no:cacheprovider --assert=plain",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
    )


def copy_packages(to: Path) -> Path:
    """Make `to` a place where `cadenza` can be imported from, before the installed one."""
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, to / "cadenza" / package, ignore=ignored)
    return to


def prove_mutant(mutant: Mutant, folder: Path) -> Proof:
    """Run the fast proof on a copy with one fault, up to the first failure."""
    path = copy_packages(folder) / "cadenza" / mutant.file
    path.write_text(path.read_text().replace(mutant.original, mutant.mutated))
    return prove(folder, "-x", "--tb=line")


@pytest.fixture(scope="module")
def proofs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Mutant, Future[Proof]]]:
    """The proofs of all mutants that were selected, one a core at a time."""
    selected = [
        item.callspec.params["mutant"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.function is test_the_fast_proof_kills
    ]
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        yield {
            mutant: executor.submit(prove_mutant, mutant, tmp_path_factory.mktemp("mutant"))
            for mutant in selected
        }
        executor.shutdown(cancel_futures=True)


def test_every_mutant_still_changes_what_it_was_made_for():
    sources = {mutant.file: (ROOT / mutant.file).read_text() for mutant in MUTANTS}

    stale = [each.name for each in MUTANTS if sources[each.file].count(each.original) != 1]
    assert not stale, "the code has moved on; let these mutants follow"
    for mutant in MUTANTS:
        source = sources[mutant.file].replace(mutant.original, mutant.mutated)
        compile(source, mutant.file, "exec")
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({mutant[1:] for mutant in MUTANTS}) == len(MUTANTS)


def test_every_part_of_the_fast_proof_is_there():
    for part in FAST_PROOF:
        path, _, name = part.partition("::")
        source = (ROOT / path).read_text()
        assert not name or f"def {name}(" in source, part


@pytest.mark.extra
def test_the_fast_proof_passes_without_a_fault(tmp_path: Path):
    done = prove(copy_packages(tmp_path))

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.extra
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_fast_proof_kills(mutant: Mutant, proofs: dict[Mutant, Future[Proof]]):
    done = proofs[mutant].result()

    # A fault that no test could miss, because nothing can be imported, would prove nothing
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert len(re.findall(r"^FAILED ", done.stdout, re.MULTILINE)) == 1, done.stdout
    assert not re.search("ImportError|NameError|SyntaxError", done.stdout), done.stdout
