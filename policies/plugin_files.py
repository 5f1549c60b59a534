"""A file with policies as a module, and what tells its versions apart."""

from __future__ import annotations

import importlib.util
import sys
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from cadenza.policies.contract import is_meant_as_policy


def import_file(file: Path) -> ModuleType:
    """Run the file as a module of its own; again if it has been before.

    Raises:
        ImportError: it is no Python file; and whatever the file raises.
    """
    name = f"cadenza_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses and type hints look there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before  # whose policies may be in use
        raise
    return module


def digest_of(cls: object) -> str | None:
    """What tells one text of the class's file from another; None if there is none to read."""
    module = sys.modules.get(str(getattr(cls, "__module__", "")))  # it may be anything yet
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return None
    try:
        return sha256(Path(file).read_bytes()).hexdigest()[:16]
    except OSError:
        return None


def policies_of(module: ModuleType) -> tuple[type, ...]:
    """The policies that the file itself defines and has not hidden behind an underscore."""
    return tuple(
        value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and is_meant_as_policy(value)
    )
