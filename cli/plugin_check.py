"""What `cadenza policies check` does: all that a service does with policies before they decide."""

from __future__ import annotations

import importlib.util
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from cadenza.cli.errors import UsageError
from cadenza.cli.output import write
from cadenza.policies.choices import SHORT
from cadenza.policies.contract import ENGINE_HOOKS, FRONT_HOOKS, hooks_of
from cadenza.policies.discovery import BUILT_IN, Catalog, Discovery, Found, installed
from cadenza.policies.errors import ProfileError
from cadenza.policies.library import LIMIT_S, Library
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
    library = Library(catalog=Catalog(policies=catalog.policies))
    in_use = (fault for name in new for fault in _faults_in_use(name, library))
    return _Findings(new, (*catalog.faults, *in_use))


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
    elif _is_module(target):
        discovery.add_module(target)
    else:
        raise UsageError(
            f"{target!r} is no file, no installed distribution or entry point of group 'cadenza', "
            "and no module"
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
