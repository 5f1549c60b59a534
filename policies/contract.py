"""What a policy class must be, checked before anything is built from it.

Nothing here calls a policy. pluggy refuses what is wrong with a hook as well, but one fault at a
time and not by the policy's name.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from cadenza.policies import hookspecs
from cadenza.policies.errors import unknown
from cadenza.policies.guesses import nearest
from cadenza.policies.markers import HOOKSPEC_VERSION, PROJECT

OBSERVER_PREFIX = "on_"
_NEARLY = 0.8  # how alike names must be where nobody has said that one is meant as a hook
_RANGE = re.compile(r"\s*(~=|[=!<>]=|[<>])\s*\d")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def _specified() -> dict[str, tuple[str, ...]]:
    marked = {
        name: spec for name, spec in vars(hookspecs).items() if hasattr(spec, f"{PROJECT}_spec")
    }
    return {name: tuple(inspect.signature(spec).parameters) for name, spec in marked.items()}


ARGUMENTS = _specified()  # hook name -> what it is called with
OBSERVERS = tuple(hook for hook in ARGUMENTS if hook.startswith(OBSERVER_PREFIX))
FRONT_HOOKS = tuple(hook for hook, names in ARGUMENTS.items() if "service" in names)
ENGINE_HOOKS = tuple(hook for hook in ARGUMENTS if hook not in FRONT_HOOKS)


def hooks_of(cls: type) -> tuple[str, ...]:
    """The hooks that a class has a marked method for, in the order of the specifications."""
    marked = {hook for hook, _, _ in _marked(cls)}
    return tuple(hook for hook in ARGUMENTS if hook in marked)


def is_meant_as_policy(cls: type) -> bool:
    """Whether a class has a marked method, or one that is called like a hook."""
    marked = any(_marked(cls)) or any(_marked_outside(cls))
    return marked or any(hasattr(cls, hook) for hook in ARGUMENTS)


def nearly_hooks(cls: type) -> dict[str, str]:
    """Methods of the class itself that are no hooks, and the hooks that they look like."""
    methods = (name for name, value in vars(cls).items() if inspect.isfunction(value))
    near = {name: nearest(name, ARGUMENTS, _NEARLY) for name in methods if name not in ARGUMENTS}
    return {name: hook for name, hook in near.items() if hook is not None}


def is_version_range(value: object) -> bool:
    """Whether it looks like what `requires_hookspec` takes."""
    return isinstance(value, str) and _RANGE.match(value) is not None


def name_faults(cls: type) -> list[str]:
    """What is wrong with a class's `name`."""
    name = getattr(cls, "name", None)
    if name is None:
        return ['has no name; add name = "..."']
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return [f"has the name {name!r}; a name has letters, digits, '-', '_' and '.' only"]
    return []


@lru_cache(maxsize=1024)
def faults_of(cls: type) -> tuple[str, ...]:
    """What is wrong with a class but its name; each fault goes on from 'policy NAME '."""
    return (*_hook_faults(cls), *_unmarked(cls), *_version_faults(cls), *_option_faults(cls))


def _marked(cls: type) -> Iterator[tuple[str, dict[str, Any], Callable[..., Any]]]:
    """Hook, marker options and function of everything that carries the marker."""
    for attribute in dir(cls):
        method = getattr(cls, attribute, None)
        marker = getattr(method, f"{PROJECT}_impl", None)
        if isinstance(marker, dict) and callable(method):
            yield marker.get("specname") or attribute, marker, method


def _marked_outside(cls: type) -> Iterator[tuple[str, str]]:
    """Hook and decorator of methods whose marker is on the decorator, where nobody sees it."""
    for attribute in dir(cls):
        raw = inspect.getattr_static(cls, attribute, None)
        if not isinstance(raw, (staticmethod, classmethod)):
            continue
        marker = vars(raw).get(f"{PROJECT}_impl")
        if isinstance(marker, dict):
            yield marker.get("specname") or attribute, type(raw).__name__


def _hook_faults(cls: type) -> Iterator[str]:
    num = 0
    for hook, decorator in _marked_outside(cls):
        num += 1
        yield f"has {hook} with @hookimpl above @{decorator}; write @hookimpl below it"
    for hook, marker, method in _marked(cls):
        num += 1
        kind = _refused_kind(method)
        if kind is not None:
            yield f"has {hook} as {kind}; a hook is a plain function that returns its answer"
        elif hook in ARGUMENTS:
            yield from _argument_faults(hook, method)
        elif not marker.get("optionalhook"):
            yield f"implements {hook}: " + unknown("hook", hook, ARGUMENTS)
    if not num:
        nearly = [f"{name} looks like {hook}" for name, hook in nearly_hooks(cls).items()]
        yield "; ".join(["has no method that is marked with @hookimpl", *nearly])


def _refused_kind(method: Callable[..., Any]) -> str | None:
    if not inspect.isroutine(method):
        return "an object"
    if inspect.iscoroutinefunction(method):  # by `async def` or by inspect.markcoroutinefunction
        return "a coroutine function (async)"
    if inspect.isasyncgenfunction(method):
        return "an async generator"
    if inspect.isgeneratorfunction(method):
        return "a generator; wrappers have nobody to wrap"
    return None


def _argument_faults(hook: str, method: Callable[..., Any]) -> Iterator[str]:
    known = ARGUMENTS[hook]
    parameters = list(inspect.signature(method).parameters.values())
    for parameter in parameters[_num_bound(method) :]:
        if parameter.default is not parameter.empty:
            continue  # never passed
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            yield f"has {hook} with the keyword-only argument {parameter.name!r}; nobody passes it"
        elif parameter.name not in known:
            yield f"has {hook}: " + unknown("argument", parameter.name, known)


def _num_bound(method: Callable[..., Any]) -> int:
    """1 where the first parameter is the instance: looked up on the class, it is still there."""
    return int(next(iter(inspect.signature(method).parameters), None) == "self")


def _unmarked(cls: type) -> Iterator[str]:
    told = {hook for hook, _ in _marked_outside(cls)}
    for hook in ARGUMENTS:
        method = getattr(cls, hook, None)
        if method is not None and hook not in told and not hasattr(method, f"{PROJECT}_impl"):
            yield f"has a method {hook} that is not marked with @hookimpl"


def _version_faults(cls: type) -> Iterator[str]:
    for name, value in vars(cls).items():
        if name != "requires_hookspec" and "hookspec" in name.lower() and is_version_range(value):
            yield f"has {name} = {value!r}, which nobody reads; call it requires_hookspec"
    wanted = getattr(cls, "requires_hookspec", None)
    if wanted is None:
        return
    try:
        allowed = SpecifierSet(wanted)
    except (InvalidSpecifier, TypeError, AttributeError):
        yield f"has requires_hookspec = {wanted!r}, which is no version range like '>=0.2,<1'"
        return
    if not allowed.contains(HOOKSPEC_VERSION, prereleases=True):
        yield f"needs hookspec {wanted}, and this is {HOOKSPEC_VERSION}"


def _option_faults(cls: type) -> Iterator[str]:
    options = getattr(cls, "Options", None)
    if options is None:
        return
    if not (isinstance(options, type) and dataclasses.is_dataclass(options)):
        yield "has Options that are no dataclass; write @dataclass(frozen=True)"
    elif not vars(options)["__dataclass_params__"].frozen:
        yield "has Options that can be changed; write @dataclass(frozen=True)"
