"""Compiles the C++ kernels; all else of the package is in pyproject.toml.

An editable install runs this whenever a file comes or goes. So a compiled library is kept in the
user's cache, under a hash of its sources, compiler and flags.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("kernels/native")
KEPT = 8  # libraries in the cache
COMMANDS = ("compiler_so", "linker_so", "linker_so_cxx", "compiler_so_cxx")  # of a compiler

KERNELS = Extension(
    "cadenza.kernels.native._kernels",
    sources=sorted(str(path) for path in FOLDER.glob("*.cpp")),
    depends=sorted(str(path) for path in FOLDER.glob("*.h")),
    language="c++",
    # Instruction sets are chosen function by function: no -march. Sums keep their order, and a
    # product is fused with its sum only where that is written: no -ffast-math.
    extra_compile_args=[
        "-std=c++17",
        "-O3",
        "-g0",
        "-ffp-contract=off",
        "-fvisibility=hidden",
        "-pthread",
        "-Wno-uninitialized",
        "-Wno-maybe-uninitialized",  # of gcc's own headers
    ],
    extra_link_args=["-pthread", *(["-Wl,-z,defs"] if sys.platform == "linux" else [])],
    # without a compiler the install succeeds; the products are oneDNN's, and torch samples
    optional=True,
)


class CachedBuild(build_ext):
    """Compiles only what was not compiled before."""

    def build_extension(self, ext: Extension) -> None:
        built = Path(self.get_ext_fullpath(ext.name))
        built.parent.mkdir(parents=True, exist_ok=True)
        # what lies there, or in build/, may be of other sources or flags, and this may fail
        built.unlink(missing_ok=True)
        self.force = True
        cached = self._cache()
        if cached is not None:
            cached /= f"{self._key(ext)}{built.suffix}"
            if copied(cached, built):
                return
        super().build_extension(ext)
        if cached is not None:
            with contextlib.suppress(OSError):
                self._keep(built, cached)

    def get_outputs(self) -> list[str]:
        return [path for path in super().get_outputs() if Path(path).exists()]

    def get_output_mapping(self) -> dict[str, str]:
        """What an editable install links: without a compiler, nothing."""
        mapping = super().get_output_mapping()
        return {built: source for built, source in mapping.items() if Path(built).exists()}

    def _cache(self) -> Path | None:
        """The user's; None: it is nobody whose."""
        try:
            home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        except RuntimeError:
            return None
        return Path(home) / "cadenza" / "kernels"

    def _key(self, ext: Extension) -> str:
        commands = [getattr(self.compiler, name, None) for name in COMMANDS]
        flags = ext.extra_compile_args, ext.extra_link_args
        compiler = list(commands[-1] or commands[0])
        digest = hashlib.sha256(repr((commands, flags, built_by(compiler))).encode())
        for path in (*ext.sources, *ext.depends):
            digest.update(f"\0{path}\0".encode() + Path(path).read_bytes())
        return digest.hexdigest()[:32]

    def _keep(self, built: Path, cached: Path) -> None:
        cached.parent.mkdir(parents=True, exist_ok=True)
        # whole or not there, whoever else installs
        partial = cached.with_suffix(f".{os.getpid()}")
        shutil.copyfile(built, partial)
        partial.replace(cached)
        by_age = sorted(cached.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        for old in by_age[:-KEPT]:
            old.unlink()


def copied(cached: Path, built: Path) -> bool:
    """Whether a library that the user has compiled before could be taken."""
    try:
        if cached.stat().st_uid != os.geteuid():
            return False  # it runs in whatever serves
        shutil.copyfile(cached, built)
    except OSError:
        return False
    return True


def built_by(compiler: list[str]) -> str:
    """Tell which compiler this is, and for which machine; empty when it cannot be run."""
    try:
        done = subprocess.run([*compiler, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return f"{done.stdout}\n{os.uname().machine}"


setup(ext_modules=[KERNELS], cmdclass={"build_ext": CachedBuild})
