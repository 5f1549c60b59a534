"""A file with policies as a module, and what tells its versions apart."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from cadenza.policies.contract import is_meant_as_policy, is_version_range, nearly_hooks


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
    return tuple(cls for cls in _classes_of(module) if is_meant_as_policy(cls))


def nearly_of(module: object) -> list[str]:
    """What to say of classes that may have been meant as policies, if this is a module."""
    if not isinstance(module, ModuleType):
        return []
    return [
        f"class {cls.__name__} has a method {method}: did you mean {hook!r}, with @hookimpl?"
        for cls in _classes_of(module)
        for method, hook in nearly_hooks(cls).items()
    ]


def ranges_of(module: object) -> list[str]:
    """Faults of a module that says itself which versions of the hooks its policies are for."""
    if not isinstance(module, ModuleType):
        return []
    return [
        f"has {name} = {value!r}, which nobody reads; "
        f"let each policy class have requires_hookspec = {value!r}"
        for name, value in vars(module).items()
        if "hookspec" in name.lower() and is_version_range(value)
    ]


def _classes_of(module: ModuleType) -> Iterator[type]:
    for name, value in vars(module).items():
        is_own = isinstance(value, type) and value.__module__ == module.__name__
        if is_own and not name.startswith("_"):
            yield value
