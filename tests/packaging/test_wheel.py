"""The wheel against the tree, and the command as it is installed from that wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = {
    PurePosixPath("cadenza/kernels/native", f"_kernels{suffix}") for suffix in EXTENSION_SUFFIXES
}
HEAVY = {"torch", "transformers", "numpy", "grpc", "starlette", "asyncio"}


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def tracked() -> list[PurePosixPath]:
    """The files of the working tree that git tracks; those just deleted are left out."""
    listed = run("git", "ls-files", "-z", cwd=ROOT).stdout.split("\0")
    return [PurePosixPath(name) for name in listed if name and (ROOT / name).exists()]


@cache
def setuptools_table() -> dict[str, object]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["tool"]["setuptools"]


def installed_name(file: PurePosixPath) -> PurePosixPath | None:
    """Where the wheel must have a file of the tree; None if it is in no package, or compiled."""
    if file.suffix in (".cpp", ".h"):
        return None
    for package, folder in setuptools_table()["package-dir"].items():
        if file.is_relative_to(folder):
            return PurePosixPath(*package.split(".")) / file.relative_to(folder)
    return None


def copy_tree(copy: Path) -> Path:
    for file in tracked():
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, copy / file)
    return copy


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built offline from a copy of the tracked files, so that no leftovers get in."""
    copy = copy_tree(tmp_path_factory.mktemp("tree"))
    out = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", out, ".", cwd=copy)
    (built,) = out.iterdir()
    return built


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        files = {PurePosixPath(name) for name in archive.namelist() if not name.endswith("/")}
    held = {file for file in files if not file.parts[0].endswith(".dist-info")}

    assert held - LIBRARY == {name for file in tracked() if (name := installed_name(file))}


def test_the_wheel_holds_the_compiled_kernels(wheel: Path):
    if shutil.which("c++") is None:
        pytest.skip("there is no compiler")
    with zipfile.ZipFile(wheel) as archive:
        assert LIBRARY & {PurePosixPath(name) for name in archive.namelist()}


def built(kind: str, copy: Path, out: Path, **environment: str) -> Path:
    """What setuptools makes of a tree, offline."""
    code = (
        "import sys; from setuptools import build_meta as meta;"
        f"meta.build_{kind}(sys.argv[1], {{'editable_mode': 'strict'}})"
    )
    done = subprocess.run(
        (sys.executable, "-c", code, out),
        cwd=copy,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_tree(tmp_path_factory.mktemp("copy"))


def test_the_source_distribution_holds_what_is_compiled(copy: Path, tmp_path: Path):
    with tarfile.open(built("sdist", copy, tmp_path)) as archive:
        files = {PurePosixPath(*PurePosixPath(name).parts[1:]) for name in archive.getnames()}

    sources = {file for file in tracked() if file.suffix in (".cpp", ".h")}
    assert sources | {PurePosixPath("setup.py")} <= files


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_without_a_compiler_the_build_succeeds_without_kernels(
    copy: Path, tmp_path: Path, kind: str
):
    missing = str(tmp_path / "no-compiler")
    out = tmp_path / "out"
    out.mkdir()
    made = built(kind, copy, out, CC=missing, CXX=missing, XDG_CACHE_HOME=str(tmp_path / "empty"))

    with zipfile.ZipFile(made) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]


def test_every_folder_with_code_is_a_listed_package():
    folders = {
        name.parent for file in tracked() if file.suffix == ".py" and (name := installed_name(file))
    }

    assert {".".join(folder.parts) for folder in folders} == set(setuptools_table()["packages"])


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment's python, with the wheel and with the dependencies of this one."""
    venv = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=ROOT)
    python = venv / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", f"--python={python}")
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=venv)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=venv)
    dependencies = Path(sysconfig.get_path("purelib"))
    # Appended to the path only: this environment's own .pth files, our editable install among
    # them, are not read.
    Path(site.stdout.strip(), "dependencies.pth").write_text(f"{dependencies}\n")
    return python


def test_the_installed_command_helps(installed: Path):
    done = run(installed.parent / "cadenza", "--help", cwd=installed.parent)

    assert "serve" in done.stdout


def test_everything_installed_comes_from_the_wheel(installed: Path):
    code = "import cadenza.service.front, cadenza.v1.generation_pb2 as v1; print(v1.__file__)"

    done = run(installed, "-P", "-c", code, cwd=ROOT)

    assert Path(done.stdout.strip()).is_relative_to(installed.parents[1])


def test_help_imports_nothing_heavy(installed: Path):
    code = (
        "import sys, cadenza.cli.main as m\ntry: m.main(['--help'])\nfinally: print(*sys.modules)"
    )

    done = run(installed, "-P", "-c", code, cwd=installed.parent)

    imported = set(done.stdout.splitlines()[-1].split())
    assert "cyclopts" in imported
    assert not imported & HEAVY


def test_pytest_finds_the_fixtures_of_the_installed_package(installed: Path, tmp_path: Path):
    done = run(
        installed, "-P", "-m", "pytest", "--fixtures", "-p", "no:cacheprovider", cwd=tmp_path
    )

    assert {"policy_table", "manual_clock", "scheduler_driver"} <= {*done.stdout.split()}
