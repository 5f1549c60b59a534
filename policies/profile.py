"""A profile: which policy answers which hook, as one pluggy manager."""

from __future__ import annotations

from collections.abc import Mapping

import pluggy

from cadenza.policies import hookspecs
from cadenza.policies.builtin import BUILTIN, DEFAULTS
from cadenza.policies.markers import PROJECT

HOOKS = tuple(DEFAULTS)
OBSERVERS = ("on_finished",)


class ProfileError(Exception):
    """A profile names a hook or a policy that does not exist, or one that cannot serve there."""


class Profile:
    """The chosen policy of every hook, with the default behind it.

    A policy with several hooks is asked only for those that the profile gives it. Guards add up:
    the default guard stands beside a chosen one. Observers are not chosen: every policy that may
    have to decide, a default behind another one included, is told.
    """

    def __init__(
        self, chosen: Mapping[str, str] | None = None, policies: Mapping[str, type] = BUILTIN
    ) -> None:
        """Build the profile.

        Args:
            chosen: hook name to policy name; hooks left out use the default.
            policies: policy name to class, the defaults among them.

        Raises:
            ProfileError: unknown hook or policy, a policy without that hook, or one that cannot be
                built or registered.
        """
        self.names = {**DEFAULTS, **(chosen or {})}
        for hook, policy in self.names.items():
            _check(hook, policy, policies)
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(hookspecs)
        for policy in dict.fromkeys([*DEFAULTS.values(), *self.names.values()]):
            self._register(policy, policies[policy])
        self._callers = {
            (hook, policy): self._only(hook, policy)
            for names in (DEFAULTS, self.names)
            for hook, policy in names.items()
        }
        self._observers = {hook: self._listening(hook) for hook in OBSERVERS}

    @property
    def guards(self) -> tuple[str, ...]:
        """The policies that `guard_starvation` asks, the chosen one first."""
        hook = "guard_starvation"
        return tuple(dict.fromkeys((self.names[hook], DEFAULTS[hook])))

    def observers(self, hook: str) -> tuple[str, ...]:
        """The policies that an observer hook tells, in no particular order."""
        return self._observers[hook]

    def caller(self, hook: str, policy: str) -> pluggy.HookCaller:
        """Asks one policy, the chosen or the default one of `hook` or an observer, nobody else."""
        return self._callers[hook, policy]

    def _register(self, policy: str, cls: type) -> None:
        try:
            self._manager.register(cls(), name=policy)
            self._manager.check_pending()
        except Exception as error:
            raise ProfileError(f"policy {policy!r} cannot be used: {error}") from error

    def _listening(self, hook: str) -> tuple[str, ...]:
        plugins = self._manager.list_name_plugin()
        listening = tuple(policy for policy, plugin in plugins if hasattr(plugin, hook))
        for policy in listening:
            self._callers[hook, policy] = self._only(hook, policy)
        return listening

    def _only(self, hook: str, policy: str) -> pluggy.HookCaller:
        others = [plugin for name, plugin in self._manager.list_name_plugin() if name != policy]
        caller = self._manager.subset_hook_caller(hook, others)
        if not caller.get_hookimpls():
            raise ProfileError(
                f"policy {policy!r} has a method {hook} that is not marked with @hookimpl"
            )
        return caller


def _check(hook: str, policy: str, policies: Mapping[str, type]) -> None:
    if hook in OBSERVERS:
        raise ProfileError(
            f"{hook!r} is not chosen: every policy of the profile that has it is told"
        )
    if hook not in DEFAULTS:
        raise ProfileError(f"there is no hook {hook!r}; hooks are {', '.join(HOOKS)}")
    if policy not in policies:
        raise ProfileError(f"there is no policy {policy!r}; policies are {', '.join(policies)}")
    if not hasattr(policies[policy], hook):
        fitting = ", ".join(name for name, cls in policies.items() if hasattr(cls, hook))
        raise ProfileError(f"policy {policy!r} does not decide {hook}; these do: {fitting}")
