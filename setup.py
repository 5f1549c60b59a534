"""Compiles the C++ kernels; all else of the package is in pyproject.toml.

An editable install runs this whenever a file comes or goes. So a compiled library is kept in the
user's cache, under a hash of its sources, compiler and flags.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("kernels/native")
KEPT = 8  # libraries in the cache

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
    extra_link_args=["-pthread"],
    # without a compiler the install succeeds, and the products are oneDNN's
    optional=True,
)


class CachedBuild(build_ext):
    """Compiles only what was not compiled before."""

    def build_extension(self, ext: Extension) -> None:
        built = Path(self.get_ext_fullpath(ext.name))
        cached = self._cache() / f"{self._key(ext)}{built.suffix}"
        if cached.exists():
            built.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(cached, built)
            return
        self.force = True  # what lies in build/ may be of other flags
        super().build_extension(ext)
        with contextlib.suppress(OSError):
            self._keep(built, cached)

    def get_outputs(self) -> list[str]:
        return [path for path in super().get_outputs() if Path(path).exists()]

    def get_output_mapping(self) -> dict[str, str]:
        """What an editable install links: without a compiler, nothing."""
        mapping = super().get_output_mapping()
        return {built: source for built, source in mapping.items() if Path(built).exists()}

    def _cache(self) -> Path:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(home) / "cadenza" / "kernels"

    def _key(self, ext: Extension) -> str:
        compiler = list(self.compiler.compiler_so)
        digest = hashlib.sha256(
            repr((compiler, ext.extra_compile_args, built_by(compiler))).encode()
        )
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


def built_by(compiler: list[str]) -> str:
    """Tell which compiler this is, and for which machine; empty when it cannot be run."""
    try:
        done = subprocess.run(
            [*shlex.split(compiler[0]), "--version"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return f"{done.stdout}\n{os.uname().machine}"


setup(ext_modules=[KERNELS], cmdclass={"build_ext": CachedBuild})
