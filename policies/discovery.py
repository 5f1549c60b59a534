"""Finds policies: built-in ones, those of installed distributions, and files of one folder.

A policy that is found does nothing; a profile that names it makes it decide.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

import pluggy
from packaging.utils import canonicalize_name

from cadenza.policies import registration
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.contract import faults_of, name_faults
from cadenza.policies.errors import ProfileError, reason_of, unknown
from cadenza.policies.guesses import unknown_policy
from cadenza.policies.markers import PROJECT, hookimpl
from cadenza.policies.plugin_files import (
    digest_of,
    import_file,
    nearly_of,
    policies_of,
    ranges_of,
)
from cadenza.policies.profile import Chosen, Options, Profile

BUILT_IN = "built in"
ALLOW_LIST = "CADENZA_PLUGINS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A policy class and where it is from."""

    cls: type
    source: str  # BUILT_IN, the name of a distribution, or a file
    version: str | None = None  # of the distribution
    digest: str | None = None  # of the file with the class, as it was loaded; None: built in

    @property
    def told(self) -> str:
        """Where it is from, for people."""
        return f"{self.source} {self.version}" if self.version else self.source

    @property
    def is_stale(self) -> bool:
        """Whether the file says something else by now. One that is gone says nothing."""
        return self.digest is not None and digest_of(self.cls) not in (None, self.digest)

    @property
    def is_gone(self) -> bool:
        """Whether the file that it was loaded from is no more."""
        return self.digest is not None and digest_of(self.cls) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All policies by name, and what could not be registered."""

    policies: dict[str, Found]
    faults: tuple[str, ...] = ()

    @property
    def classes(self) -> dict[str, type]:
        return {name: found.cls for name, found in self.policies.items()}

    def from_source(self, source: str) -> dict[str, Found]:
        """The policies that are from there."""
        return {name: found for name, found in self.policies.items() if found.source == source}

    def profile(
        self,
        chosen: Chosen | None = None,
        options: Options | None = None,
        *,
        trace: bool = False,
        faults: Sequence[str] = (),
        plugin_faults: Sequence[str] = (),
        before: Profile | None = None,
    ) -> Profile:
        """Build a profile of these policies, which shall follow the one `before`.

        Raises:
            ProfileError: what was wrong in discovery or is wrong with plugins that were looked for
                since, `faults`, and what is wrong with the profile, all together. Where a plugin
                is at fault, policies that it may have had are not missed besides.
        """
        plugin_faults = (*self.faults, *plugin_faults)
        known = (*plugin_faults, *faults)
        try:
            profile = Profile(chosen, self.classes, options, trace=trace, before=before)
        except ProfileError as error:
            missed = self._missed(chosen or {}) if plugin_faults else ()
            others = [fault for fault in error.faults if fault not in missed]
            raise ProfileError(*known, *others) from error
        if known:
            raise ProfileError(*known)
        return profile

    def _missed(self, chosen: Chosen) -> list[str]:
        """What a profile says of names that nobody has."""
        several = [[each] if isinstance(each, str) else each for each in chosen.values()]
        return [
            unknown_policy(name, self.policies)
            for names in several
            for name in names
            if name not in self.policies
        ]


def discover(
    plugins_dir: Path | None = None,
    allowed: Collection[str] | None = None,
    *,
    known: Catalog | None = None,
) -> Catalog:
    """Find everything; foreign modules are imported here, and nowhere else.

    Args:
        plugins_dir: a folder whose Python files are plugins as well.
        allowed: names of distributions or entry points that may be loaded; None: all.
        known: what was found before. A file of it that has not changed is not run again.
    """
    discovery = Discovery(known)
    discovery.add_installed(allowed)
    if plugins_dir is not None:
        discovery.add_folder(plugins_dir)
    return discovery.catalog()


def installed() -> tuple[str, ...]:
    """The names that an allow-list may have: of entry points of the group, and of distributions."""
    points = entry_points(group=PROJECT)
    return tuple(sorted({name for point in points for name in _names(point)}))


def forget_modules(found: Found) -> None:
    """Have the module of a distribution's policy, and those of its entry points, run once more.

    What these import besides stays as it was loaded. Files run anew whenever they are added.
    """
    if found.version is None:
        return
    points = entry_points(group=PROJECT)
    modules = {point.module for point in points if _distribution(point) == found.source}
    for name in modules | {found.cls.__module__}:
        sys.modules.pop(name, None)


class Discovery:
    """Registers plugins one by one, and collects their policies and their faults."""

    def __init__(self, known: Catalog | None = None) -> None:
        """`known`: as for `discover`."""
        self._known = known or Catalog(policies={})
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(registration)
        self._found: dict[str, Found] = {}
        self._faults: list[str] = []
        self._register(_Classes(tuple(BUILTIN.values())), BUILT_IN, None, BUILT_IN)

    def catalog(self) -> Catalog:
        return Catalog(policies=dict(self._found), faults=tuple(self._faults))

    def add_installed(self, allowed: Collection[str] | None = None) -> None:
        """The entry points of group `cadenza`, or those whose names or distributions are given."""
        names = installed()
        wanted = None if allowed is None else {canonicalize_name(name) for name in allowed}
        for name in allowed or ():
            if canonicalize_name(name) not in map(canonicalize_name, names):
                self._faults.append(f"{ALLOW_LIST}: " + unknown("plugin", name, names))
        points = entry_points(group=PROJECT)
        for point in sorted(points, key=lambda point: (_distribution(point), point.name)):
            if wanted is None or {*map(canonicalize_name, _names(point))} & wanted:
                self._add(point.load, _distribution(point), _version(point), point.name)

    def add_folder(self, folder: Path) -> None:
        """Every Python file of a folder whose name does not begin with an underscore."""
        if not folder.is_dir():
            self._faults.append(f"--plugins-dir {folder} is no folder")
            return
        for file in sorted(folder.glob("[!_]*.py")):
            known = self._known.from_source(str(file))
            if known and not any(found.is_stale for found in known.values()):
                self._found |= known
            else:
                self.add_file(file)

    def add_file(self, file: Path) -> None:
        """A file with `register_policies()`, or with policy classes alone."""

        def load() -> object:
            module = import_file(file)
            is_whole = hasattr(module, "register_policies")
            return module if is_whole else _Classes(policies_of(module), module)

        self._add(load, str(file), None, file.stem)

    def add_module(self, name: str) -> None:
        """A module that can be imported and has `register_policies()`, installed or not."""
        self._add(lambda: importlib.import_module(name), name, None, name)

    def _add(self, load: Callable[[], object], source: str, version: str | None, name: str) -> None:
        try:
            plugin = load()
        except (Exception, SystemExit) as error:
            self._faults.append(
                f"plugin {_told(name, source, version)} fails to import: {reason_of(error)}"
            )
            return
        self._register(plugin, source, version, name)

    def _register(self, plugin: object, source: str, version: str | None, name: str) -> None:
        told = _told(name, source, version)
        try:
            classes = self._ask(plugin, told)
        except (Exception, SystemExit) as error:
            self._faults.append(f"plugin {told} cannot be registered: {reason_of(error)}")
            return
        if not isinstance(classes, (list, tuple)):
            self._faults.append(
                f"plugin {told}: register_policies must return a list of policy classes, "
                f"and returned {type(classes).__name__}"
            )
            return
        module = plugin.module if isinstance(plugin, _Classes) else plugin
        if not classes:
            self._faults.append("; ".join([f"plugin {told} has no policies", *nearly_of(module)]))
        self._faults += [f"plugin {told} {fault}" for fault in ranges_of(module)]
        for cls in classes:
            digest = None if source == BUILT_IN else digest_of(cls)
            found = Found(cls=cls, source=source, version=version, digest=digest)
            self._admit(cls, found, told)

    def _ask(self, plugin: object, told: str) -> object:
        """What its `register_policies` returns."""
        if isinstance(plugin, type):
            raise ProfileError(
                f"it is a class; name a module or object that has register_policies() "
                f"and returns [{plugin.__name__}]"
            )
        self._manager.register(plugin, name=told)
        try:
            self._manager.check_pending()
            (answer,) = self._asking(plugin)()
        except BaseException:
            self._manager.unregister(plugin)
            raise
        answered: object = answer
        return answered

    def _asking(self, plugin: object) -> pluggy.HookCaller:
        others = [each for each in self._manager.get_plugins() if each is not plugin]
        caller = self._manager.subset_hook_caller("register_policies", others)
        impls = caller.get_hookimpls()
        if not impls:
            raise ProfileError("it has no function register_policies() marked with @hookimpl")
        if any(inspect.iscoroutinefunction(impl.function) for impl in impls):
            raise ProfileError("its register_policies() is async; make it a plain function")
        return caller

    def _admit(self, cls: object, found: Found, told: str) -> None:
        if not isinstance(cls, type):
            self._faults.append(f"plugin {told} registers {cls!r}, which is no class")
            return
        policy = getattr(cls, "name", None) or cls.__qualname__
        where = "" if found.source == BUILT_IN else f" of plugin {told}"
        faults = [*name_faults(cls), *faults_of(cls)]
        other = self._found.get(policy)
        if not faults and other is not None:
            faults = [f"has the name of another one, which is from {other.told}; rename one"]
        if faults:
            self._faults += [f"policy {policy!r}{where} {fault}" for fault in faults]
        else:
            self._found[policy] = found


class _Classes:
    """A plugin that consists of these classes."""

    def __init__(self, classes: Sequence[type], module: ModuleType | None = None) -> None:
        self._classes = classes
        self.module = module  # where they are from

    @hookimpl
    def register_policies(self) -> Sequence[type]:
        return self._classes


def _names(point: EntryPoint) -> tuple[str, str]:
    return point.name, _distribution(point)


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module


def _version(point: EntryPoint) -> str | None:
    return point.dist.version if point.dist is not None else None


def _told(name: str, source: str, version: str | None) -> str:
    return f"{name!r} ({source})" if version is None else f"{name!r} ({source} {version})"
