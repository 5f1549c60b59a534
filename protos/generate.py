"""Generates the Python code of the protos beside them; `--check` only compares.

Exits with 1 when `--check` finds a generated file missing, out of date or left over.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def generate(target: Path) -> None:
    """Write the generated files of every proto into `target`. Raises on a protoc error."""
    protos = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.proto"))
    outputs = [f"--{kind}_out={target}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    # protoc looks for its mypy plugins on PATH, where a venv that is not activated is missing.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command = [sys.executable, "-P", "-m", "grpc_tools.protoc", "-I", str(ROOT), *outputs]
    subprocess.run(
        [*command, "--mypy_opt=quiet", "--mypy_grpc_opt=quiet,only_async", *protos],
        check=True,
        env={**os.environ, "PATH": path},
    )


def contents(root: Path) -> dict[Path, bytes]:
    """The generated files below `root`, by relative path."""
    files = (path for pattern in GENERATED for path in root.rglob(pattern))
    return {path.relative_to(root): path.read_bytes() for path in files}


def stale(root: Path) -> list[Path]:
    """The generated files below `root` that differ from what its protos give now."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        wanted = contents(Path(scratch))
    found = contents(root)
    return sorted(
        path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path)
    )


def main(arguments: list[str]) -> int:
    """Run the command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if not parser.parse_args(arguments).check:
        generate(ROOT)
        return 0
    differing = stale(ROOT)
    for path in differing:
        sys.stdout.write(f"protos/{path} is not what its proto generates; run generate.py\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
