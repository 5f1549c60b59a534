"""The policies that a process knows, and the profiles that it builds of them while it serves."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from cadenza.policies.contract import hooks_of
from cadenza.policies.discovery import Catalog, discover
from cadenza.policies.errors import ProfileError, describe
from cadenza.policies.preparation import Preparation
from cadenza.policies.profile import Profile
from cadenza.policies.warm_up import warm_up

ByHook = Mapping[str, Sequence[str]]
ByPolicy = Mapping[str, Mapping[str, Any]]


class Library:
    """Finds policies once, and again when a profile names one that is not known.

    A class that is known stays what it is, whatever becomes of its file, so that instances of it
    can be kept from one profile to the next.
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
    ) -> Profile:
        """A profile of policies that are known or can be found, which shall follow `before`.

        Raises:
            ProfileError: everything that is wrong with it, `faults` among it.
        """
        if not {name for names in chosen.values() for name in names} <= {*self.catalog.policies}:
            faults = (*self._look_again(), *faults)
        return self.catalog.profile(
            chosen, options, trace=self._trace, faults=faults, before=before
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
        found = discover(*self._where)
        self.catalog = Catalog(policies={**found.policies, **self.catalog.policies})
        return found.faults


def prepare(build: Callable[[], Profile]) -> Preparation[Profile]:
    """Begin to build a profile aside. Whatever foreign code raises is a ProfileError."""

    def work() -> Profile:
        try:
            return build()
        except ProfileError:
            raise
        except BaseException as error:
            raise ProfileError(f"the policies cannot be built: {describe(error)}") from error

    return Preparation(work)


def too_late(chosen: ByHook, before: Profile | None, limit_s: float) -> str:
    """What to say of a preparation that was given up."""
    known = () if before is None else before.policies
    new = dict.fromkeys(name for names in chosen.values() for name in names if name not in known)
    whom = ", ".join(new) or "those with other options"
    return f"The new policies ({whom}) were not built and tried within {limit_s:g} s."
