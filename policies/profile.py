"""A profile: which policy answers which hook, as one pluggy manager."""

from __future__ import annotations

from collections.abc import Mapping

import pluggy

from cadenza.policies import hookspecs
from cadenza.policies.builtin import BUILTIN, DEFAULTS
from cadenza.policies.markers import PROJECT

HOOKS = tuple(DEFAULTS)


class ProfileError(Exception):
    """A profile names a hook or a policy that does not exist, or one that cannot serve there."""


class Profile:
    """The chosen policy of every hook, with the default behind it.

    A policy with several hooks is asked only for those that the profile gives it.
    """

    def __init__(
        self, chosen: Mapping[str, str] | None = None, policies: Mapping[str, type] = BUILTIN
    ) -> None:
        """Build the profile.

        Args:
            chosen: hook name to policy name; hooks left out use the default.
            policies: policy name to class, the defaults among them.

        Raises:
            ProfileError: unknown hook or policy, or a policy without that hook.
        """
        self.names = {**DEFAULTS, **(chosen or {})}
        for hook, policy in self.names.items():
            _check(hook, policy, policies)
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(hookspecs)
        # pluggy asks the latest registration first, so that the defaults stand behind the chosen.
        for policy in dict.fromkeys([*DEFAULTS.values(), *self.names.values()]):
            self._manager.register(policies[policy](), name=policy)
        self._manager.check_pending()
        self._callers = {hook: self._only(hook, name) for hook, name in self.names.items()}
        self._defaults = {hook: self._only(hook, name) for hook, name in DEFAULTS.items()}

    def chosen(self, hook: str) -> pluggy.HookCaller:
        """Ask the chosen policy of `hook` alone."""
        return self._callers[hook]

    def default(self, hook: str) -> pluggy.HookCaller:
        """Ask the default policy of `hook` alone."""
        return self._defaults[hook]

    def _only(self, hook: str, policy: str) -> pluggy.HookCaller:
        others = [plugin for name, plugin in self._manager.list_name_plugin() if name != policy]
        return self._manager.subset_hook_caller(hook, others)


def _check(hook: str, policy: str, policies: Mapping[str, type]) -> None:
    if hook not in DEFAULTS:
        raise ProfileError(f"there is no hook {hook!r}; hooks are {', '.join(HOOKS)}")
    if policy not in policies:
        raise ProfileError(f"there is no policy {policy!r}; policies are {', '.join(policies)}")
    if not hasattr(policies[policy], hook):
        fitting = ", ".join(name for name, cls in policies.items() if hasattr(cls, hook))
        raise ProfileError(f"policy {policy!r} does not decide {hook}; these do: {fitting}")
