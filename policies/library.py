"""The policies that a process knows, and the profiles that it builds of them while it serves."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from cadenza.policies.contract import hooks_of
from cadenza.policies.discovery import Catalog, discover
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

    A class that is known stays what it is, whatever becomes of its file, so that instances of it
    can be kept from one profile to the next. Once its file has changed it cannot be chosen anew:
    nobody would expect the old one, and another process might have loaded the new one.
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
        if not named.keys() <= {*self.catalog.policies}:
            faults = (*self._look_again(), *faults)
        known = () if before is None else before.policies
        faults = (*faults, *self._outdated(name for name in named if name not in known))
        faults = (*faults, *self._differing(digests or {}))
        return self.catalog.profile(
            chosen, options, trace=self._trace, faults=faults, before=before
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
                yield (
                    f"policy {name!r}: its file ({found.source}) has changed since it was loaded; "
                    "restart the service to have it loaded anew"
                )

    def _differing(self, digests: Mapping[str, str]) -> Iterator[str]:
        for name, digest in digests.items():
            found = self.catalog.policies.get(name)
            if found is not None and found.digest != digest:
                yield (
                    f"policy {name!r}: front and engine process have loaded different versions of "
                    f"its file ({found.source}); restart the service"
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
        importlib.invalidate_caches()
        found = discover(*self._where, known=self.catalog)
        self.catalog = Catalog(policies={**found.policies, **self.catalog.policies})
        return found.faults


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
