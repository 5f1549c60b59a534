"""Writes what a policy answers; for a process with another seed for hashes."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from operator import attrgetter
from types import ModuleType

from cadenza.testing.purity import fingerprint
from cadenza.testing.trial import Subject, hook_guard

NOT_THERE = 3  # exit status


def main(told: str) -> None:
    """`told` is JSON: module, qualified name, the module's file or null, and options."""
    module, name, file, options = json.loads(told)
    try:
        policy = attrgetter(name)(_load(module, file))
    except ImportError as error:  # what a test imports need not be there for others
        sys.stdout.write(f"{module} cannot be imported in another process: {error}")
        sys.exit(NOT_THERE)
    with hook_guard() as guard:
        sys.stdout.write(fingerprint(Subject(policy, options), guard))


def _load(module: str, file: str | None) -> ModuleType:
    """By its name where it has one here, otherwise by its file, as test modules may be loaded."""
    try:
        return importlib.import_module(module)
    except ImportError:
        if file is None:
            raise
    spec = importlib.util.spec_from_file_location(module, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    loaded = sys.modules[module] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


if __name__ == "__main__":
    main(sys.argv[1])
