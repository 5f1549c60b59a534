"""The policies that a process knows, and the profiles that it builds of them while it serves."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cadenza.policies.contract import hooks_of
from cadenza.policies.discovery import Catalog, Found, discover, forget_modules
from cadenza.policies.errors import ProfileError, describe
from cadenza.policies.hook_guard import forget_frames
from cadenza.policies.preparation import Preparation
from cadenza.policies.profile import Profile
from cadenza.policies.warm_up import warm_up

ByHook = Mapping[str, Sequence[str]]
ByPolicy = Mapping[str, Mapping[str, Any]]

LIMIT_S = 20.0  # for imports, constructors and the trial; some libraries take seconds to import


class Library:
    """Finds policies once, and again when a profile names one that is not known.

    A class that decides or has decided (`settle`) stays what it is, whatever becomes of its file,
    so that instances of it can be kept from one profile to the next. Once its file has changed it
    cannot be chosen anew: nobody would expect the old one, and another process might have loaded
    the new one. A file or distribution of which nothing has decided yet is loaded anew when it has
    changed and one of its policies is named, and forgotten when it is gone.
    """

    def __init__(
        self,
        plugins_dir: Path | None = None,
        allowed: Collection[str] | None = None,
        *,
        trace: bool = False,
        catalog: Catalog | None = None,
    ) -> None:
        """Where to look, as `discover` has it, and what has been found there already."""
        self._where = plugins_dir, allowed
        self._trace = trace
        self.catalog = catalog or discover(*self._where)
        self._settled: set[str] = set()  # sources of policies that have decided

    def settle(self, profile: Profile) -> None:
        """The policies of `profile` decide, or are asked besides, from now on."""
        found = self.catalog.policies
        self._settled |= {found[policy].source for policy in profile.policies if policy in found}

    @property
    def present(self) -> Catalog:
        """What is known, without what is gone and has never decided. Reads the files."""
        found = self.catalog.policies.items()
        gone = {name for name, each in found if self._is_renewable(each) and each.is_gone}
        return Catalog(policies={name: each for name, each in found if name not in gone})

    @property
    def stale(self) -> frozenset[str]:
        """The policies that only a restart loads as their files are now. Reads the files."""
        found = self.catalog.policies.items()
        return frozenset(
            name for name, each in found if not self._is_renewable(each) and each.is_stale
        )

    def _is_renewable(self, found: Found) -> bool:
        return found.digest is not None and found.source not in self._settled

    def _is_outdated(self, name: str) -> bool:
        """Whether what is known under this name is no longer there, and can be looked for again."""
        found = self.catalog.policies[name]
        return self._is_renewable(found) and (found.is_stale or found.is_gone)

    def profile(
        self,
        chosen: ByHook,
        options: ByPolicy,
        *,
        before: Profile | None = None,
        faults: Sequence[str] = (),
        digests: Mapping[str, str] | None = None,
    ) -> Profile:
        """A profile of policies that are known or can be found, which shall follow `before`.

        `digests`: what another process, which builds the same, has loaded, as `digests` tells it.

        Raises:
            ProfileError: everything that is wrong with it, `faults` among it.
        """
        named = {name: None for names in chosen.values() for name in names}
        plugin_faults: Sequence[str] = ()
        if any(name not in self.catalog.policies or self._is_outdated(name) for name in named):
            plugin_faults = self._look_again()
        known = () if before is None else before.policies
        faults = (*faults, *self._outdated(name for name in named if name not in known))
        faults = (*faults, *self._differing(digests or {}))
        return self.catalog.profile(
            chosen,
            options,
            trace=self._trace,
            faults=faults,
            plugin_faults=plugin_faults,
            before=before,
        )

    def tried(
        self,
        chosen: ByHook,
        options: ByPolicy,
        hooks: Collection[str],
        *,
        before: Profile | None = None,
        faults: Sequence[str] = (),
        digests: Mapping[str, str] | None = None,
    ) -> Profile:
        """As `profile`, once these hooks of its new policies have been tried.

        Raises:
            ProfileError: as `profile` and `try_out`.
        """
        profile = self.profile(chosen, options, before=before, faults=faults, digests=digests)
        try:
            self.try_out(profile, chosen, options, hooks)
        except BaseException:
            profile.let_go()  # here, in this thread
            raise
        return profile

    def digests(self, profile: Profile) -> dict[str, str]:
        """By policy, what tells one version of its file from another, as it was loaded here."""
        found = {policy: self.catalog.policies[policy] for policy in profile.policies}
        return {policy: each.digest for policy, each in found.items() if each.digest is not None}

    def _outdated(self, names: Iterable[str]) -> Iterator[str]:
        for name in names:
            found = self.catalog.policies.get(name)
            if found is not None and found.is_stale:
                remedy = "restart the service to have it loaded anew"
                yield f"policy {name!r}: {_change(found)}; {remedy}"

    def _differing(self, digests: Mapping[str, str]) -> Iterator[str]:
        for name, digest in digests.items():
            found = self.catalog.policies.get(name)
            if found is not None and found.digest != digest:
                remedy = "choose it again" if self._is_renewable(found) else "restart the service"
                yield (
                    f"policy {name!r}: front and engine process have loaded different versions of "
                    f"its file ({found.source}); {remedy}"
                )

    def try_out(
        self, profile: Profile, chosen: ByHook, options: ByPolicy, hooks: Collection[str]
    ) -> None:
        """Warm up the policies with any of these hooks that are new in `profile`, built of these.

        Raises:
            ProfileError: one cannot be built a second time, or a hook of it fails.
        """
        classes = self.catalog.classes
        new = {*profile.policies} - profile.kept
        new = {policy for policy in new if {*hooks_of(classes[policy])} & {*hooks}}
        tried = {hook: [name for name in names if name in new] for hook, names in chosen.items()}
        tried = {hook: names for hook, names in tried.items() if names}
        if not tried:
            return
        throw_away = self.catalog.profile(
            tried, {policy: each for policy, each in options.items() if policy in new}
        )
        try:
            warm_up(throw_away, hooks)
        finally:
            throw_away.let_go()

    def _look_again(self) -> tuple[str, ...]:
        """Add what was installed since; what is wrong with it concerns the one who wanted it."""
        known = self.catalog.policies
        outdated = {name: each for name, each in known.items() if self._is_outdated(name)}
        for each in outdated.values():
            forget_modules(each)
        importlib.invalidate_caches()
        found = discover(*self._where, known=self.catalog)
        # A class that came again under the same name is as it was, whatever its file says now
        stays = {
            name: each
            for name, each in known.items()
            if name not in outdated
            or (name in found.policies and found.policies[name].cls is each.cls)
        }
        self.catalog = Catalog(policies={**found.policies, **stays})
        return found.faults


def _change(found: Found) -> str:
    """What has become of a policy since it was loaded."""
    if found.version is not None:
        with suppress(PackageNotFoundError):
            now = version(found.source)
            if now != found.version:
                return f"{found.source} was {found.version} when it was loaded, {now} is installed"
    return f"its file ({found.source}) has changed since it was loaded"


def prepare(build: Callable[[], Profile]) -> Preparation[Profile]:
    """Begin to build a profile aside. Whatever foreign code raises is a ProfileError.

    Nothing of a failure but its text gets out, so that what else there is of it ends aside as well.
    """

    def work() -> Profile:
        try:
            return build()
        except ProfileError as error:
            faults = error.faults
            forget_frames(error)
        except BaseException as error:
            faults = (f"the policies cannot be built: {describe(error)}",)
            forget_frames(error)
        raise ProfileError(*faults)

    return Preparation(work)


def in_time(build: Callable[[], Profile], late: str, limit_s: float = LIMIT_S) -> Profile:
    """What `build` returns, for whoever can wait for it; foreign code in it is given up.

    Raises:
        ProfileError: it fails, or takes longer than `limit_s`, which `late` says.
    """
    preparation = prepare(build)
    done, _ = wait([preparation.future], limit_s)
    if not done:
        preparation.abandon()
        raise ProfileError(late)
    return preparation.future.result()


def too_late(chosen: ByHook, before: Profile | None, limit_s: float) -> str:
    """What to say of a preparation that was given up."""
    known = () if before is None else before.policies
    new = dict.fromkeys(name for names in chosen.values() for name in names if name not in known)
    whom = ", ".join(new) or "those with other options"
    return f"The new policies ({whom}) were not built and tried within {limit_s:g} s."
