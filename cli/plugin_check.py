"""What `cadenza policies check` does: all that a service does with policies before they decide."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.utils import canonicalize_name

from cadenza.cli.errors import UsageError
from cadenza.cli.output import write
from cadenza.cli.profile import allowed_plugins
from cadenza.policies.choices import SHORT
from cadenza.policies.contract import ENGINE_HOOKS, FRONT_HOOKS, hooks_of
from cadenza.policies.discovery import BUILT_IN, Catalog, Discovery, Found, discover, installed
from cadenza.policies.errors import ProfileError
from cadenza.policies.guesses import guess, nearest
from cadenza.policies.library import LIMIT_S, Library
from cadenza.policies.markers import PROJECT
from cadenza.policies.options import options_of
from cadenza.policies.preparation import Preparation
from cadenza.policies.profile import OBSERVER


@dataclass(frozen=True, slots=True)
class _Findings:
    """The policies that a plugin has, and all that is wrong."""

    policies: dict[str, Found]
    faults: tuple[str, ...]


def check_plugin(target: str, limit_s: float = LIMIT_S) -> int:
    """Write the faults of a plugin, or its policies if it has none; returns 1 or 0.

    `limit_s`: for importing it, and for building and trying its policies.

    Raises:
        UsageError: there is no such file, distribution, entry point or module.
    """
    preparation = Preparation(lambda: _examine(target))
    done, _ = wait([preparation.future], limit_s)
    if done:
        found = preparation.future.result()
    else:
        preparation.abandon()
        late = f"{target} was not imported, and its policies built and tried, within {limit_s:g} s"
        found = _Findings({}, (late,))
    lines = [f"{name}: {', '.join(hooks_of(each.cls))}" for name, each in found.policies.items()]
    lines += [f"fault: {fault}" for fault in found.faults] or ["no faults"]
    write("\n".join(lines) + "\n")
    return 1 if found.faults else 0


def _examine(target: str) -> _Findings:
    """All of it that runs foreign code."""
    discovery = Discovery()
    _add(discovery, target)
    catalog = discovery.catalog()
    new = {name: each for name, each in catalog.policies.items() if each.source != BUILT_IN}
    clashes = _clashes(new)
    library = Library(catalog=Catalog(policies=catalog.policies))
    in_use = (fault for name in new for fault in _faults_in_use(name, library))
    return _Findings(new, (*catalog.faults, *clashes, *in_use))


def _clashes(new: Mapping[str, Found]) -> list[str]:
    """Faults of names that policies of other plugins have, which a service would find as well."""
    others = discover(allowed=allowed_plugins()).policies
    return [
        f"policy {name!r} of {each.source} has the name of another one, which is from "
        f"{others[name].told}; rename one"
        for name, each in new.items()
        if name in others and _file_of(others[name]) != _file_of(each)
    ]


def _file_of(found: Found) -> Path:
    module = sys.modules.get(found.cls.__module__)
    return Path(getattr(module, "__file__", None) or found.source).resolve()


def _add(discovery: Discovery, target: str) -> None:
    path = Path(target)
    if path.is_dir():
        discovery.add_folder(path)
    elif path.suffix == ".py" or path.is_file():
        if not path.is_file():
            raise UsageError(f"there is no file {target}")
        discovery.add_file(path)
    elif canonicalize_name(target) in map(canonicalize_name, installed()):
        discovery.add_installed((target,))
    elif _elsewhere(target) is None and _is_module(target):
        discovery.add_module(target)
    else:
        raise UsageError(_nothing(target))


def _nothing(target: str) -> str:
    """Why there is nothing to check, with what may have been meant."""
    named = _elsewhere(target)
    if named is not None:
        return named
    found = discover(allowed=allowed_plugins()).policies.get(target)
    if found is not None and found.source == BUILT_IN:
        return f"{target!r} is no plugin, but a policy that is built in"
    if found is not None:
        return f"{target!r} is no plugin, but a policy of {found.told}; check that"
    return (
        f"{target!r} is no file, no installed distribution or entry point of group {PROJECT!r}, "
        f"and no module{guess(target, installed())}"
    )


def _elsewhere(target: str) -> str | None:
    """What to say of a distribution, or an entry point of one, that no service would look at."""
    name = canonicalize_name(target)
    points = (point for each in distributions() for point in each.entry_points)
    others = [point for point in points if _is_nearly_ours(point.group)]
    try:
        version = distribution(target).version
    except (PackageNotFoundError, ValueError):
        groups = [each.group for each in others if canonicalize_name(each.name) == name]
        what = f"{target!r} is an entry point" if groups else None
    else:
        own = distribution(target).entry_points
        groups = [each.group for each in own if _is_nearly_ours(each.group)]
        what = f"{target!r} ({version}) is installed, but has no entry point in group {PROJECT!r}"
    return f"{what}; the group must not be {groups[0]!r}" if groups else what


def _is_nearly_ours(group: str) -> bool:
    return group != PROJECT and (
        PROJECT in group.lower() or nearest(group.lower(), (PROJECT,), 0.75) is not None
    )


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    except Exception:  # of a parent package that fails to import: registering it says how
        return True


def _faults_in_use(name: str, library: Library) -> tuple[str, ...]:
    """What goes wrong when a service begins with this policy for all that it does."""
    cls = library.catalog.classes[name]
    decisions = [hook for hook in hooks_of(cls) if hook in SHORT]
    try:
        if any(option.is_required for option in options_of(cls)):
            return ()  # nobody can build it without knowing them
        chosen = dict.fromkeys(decisions or [OBSERVER], (name,))
        library.tried(chosen, {}, ENGINE_HOOKS + FRONT_HOOKS).let_go()
    except ProfileError as error:
        return error.faults
    return ()
