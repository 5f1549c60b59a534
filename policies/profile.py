"""A profile: which policy answers which hook, each policy in a pluggy manager of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import pluggy

from cadenza.policies import hookspecs
from cadenza.policies.builtin import BUILTIN, DEFAULTS
from cadenza.policies.contract import ARGUMENTS, OBSERVERS, faults_of, hooks_of
from cadenza.policies.errors import ProfileError, quoted, reason_of, unknown
from cadenza.policies.guesses import unknown_policy
from cadenza.policies.markers import PROJECT
from cadenza.policies.options import build_policy, read_options
from cadenza.policies.trace import trace_calls

__all__ = ["HOOKS", "LISTS", "OBSERVER", "OBSERVERS", "Profile", "ProfileError"]

HOOKS = tuple(DEFAULTS)
GUARD = "guard_starvation"
GATE = "gate_arrivals"
OBSERVER = "observer"  # stands in a profile for policies that are only told
LISTS = (GUARD, GATE, OBSERVER)  # may have several policies

Chosen = Mapping[str, str | Sequence[str]]
Options = Mapping[str, Mapping[str, Any]]


class _Made(NamedTuple):
    """What an instance is built from; equal ones build what may stand for each other."""

    cls: type
    options: object | None


class _Wired(NamedTuple):
    """An instance in a manager of its own, so that it is replaced without touching any other."""

    manager: pluggy.PluginManager
    callers: dict[str, pluggy.HookCaller]  # by hook, of those that it has

    def let_go(self) -> None:
        """Drop the instance, which ends here if nobody else holds it: managers are cycles."""
        self.callers.clear()
        for name, _ in self.manager.list_name_plugin():
            self.manager.unregister(name=name)


_OF_OBJECT = {name: getattr(object, name) for name in dir(object)}


class _Manager(pluggy.PluginManager):
    """Does not look for hooks among what a policy has from `object`, which is most of its names.

    pluggy looks each up statically, and that is most of the time that a profile takes to build.
    """

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """The marker's options; None for what is no hook."""
        if getattr(type(plugin), name, plugin) is _OF_OBJECT.get(name):
            return None
        return super().parse_hookimpl_opts(plugin, name)


class Profile:
    """The chosen policy of every hook, with the default behind it.

    A policy with several hooks is one instance, and is asked only for those that the profile gives
    it. Guards add up, and so do gates: the defaults stand beside chosen ones. Of observer hooks
    every policy that may have to decide, a default behind another one included, is told, and those
    that were chosen as observers besides.
    """

    def __init__(
        self,
        chosen: Chosen | None = None,
        policies: Mapping[str, type] = BUILTIN,
        options: Options | None = None,
        *,
        trace: bool = False,
        before: Profile | None = None,
    ) -> None:
        """Build the profile.

        Args:
            chosen: hook name, or `OBSERVER`, to a policy's name, or to several where `LISTS` allow
                it; hooks left out use the default.
            policies: policy name to class, the defaults among them.
            options: policy name to its options, as text or as they are.
            trace: log every call of a hook.
            before: the profile that this one shall follow. A policy that it has, of the same class
                and equal options, is not built: its instance is taken over, with its state.

        Raises:
            ProfileError: everything that is wrong: unknown hooks and policies, policies without
                that hook, and those that cannot be built or registered.
        """
        given = _as_tuples(chosen or {})
        self._policies = policies
        self.options: Options = options or {}
        self._trace = trace
        self._told = given.pop(OBSERVER, ())
        faults = _choice_faults(given, self._told, policies)
        decisive = {hook: names for hook, names in given.items() if hook in DEFAULTS and names}
        # For a hook that asks several, the first of them
        self.names: dict[str, str] = DEFAULTS | {hook: each[0] for hook, each in decisive.items()}
        self.guards: tuple[str, ...] = _once(*decisive.get(GUARD, ()), DEFAULTS[GUARD])
        self.gates: tuple[str, ...] = _once(DEFAULTS[GATE], *decisive.get(GATE, ()))
        self._active = _once(
            *DEFAULTS.values(), *self.names.values(), *self.guards, *self.gates, *self._told
        )
        self._made: dict[str, _Made] = {}
        self.kept: frozenset[str] = frozenset()  # policies taken over from the profile before
        self._instances = self._build_all(faults, before)
        self._wired = {policy: self._wire(policy, each) for policy, each in self._instances.items()}
        self._left: list[_Wired] = []  # by one that followed this, to be let go with it
        self._observers = {
            hook: tuple(policy for policy, each in self._wired.items() if hook in each.callers)
            for hook in OBSERVERS
        }
        # Read once, as a class may be made to run code when it is asked for an attribute
        order = self._policies[self.names["order_admissions"]]
        self.overtakes_within_tenant = getattr(order, "overtakes_within_tenant", False) is True

    @property
    def is_traced(self) -> bool:
        """Whether somebody wants to see what policies do."""
        return self._trace

    @property
    def policies(self) -> tuple[str, ...]:
        """The names of all policies that may be asked or told something."""
        return self._active

    def deciding(self, hook: str) -> tuple[str, ...]:
        """The policies that `hook` asks or tells, the defaults behind them left out."""
        if hook in OBSERVERS:
            return self.observers(hook)
        several = {GUARD: self.guards, GATE: self.gates}
        return several.get(hook) or (self.names[hook],)

    def observers(self, hook: str) -> tuple[str, ...]:
        """The policies that an observer hook tells, in no particular order."""
        return self._observers[hook]

    def caller(self, hook: str, policy: str) -> pluggy.HookCaller:
        """Asks one policy that has this hook, nobody else.

        Ask for it again after `rebuild`: a caller belongs to the instance of its time.
        """
        return self._wired[policy].callers[hook]

    def rebuild(self, policy: str) -> None:
        """Put a fresh instance, of the same class and options, in the place of a policy's.

        Raises:
            ProfileError: it cannot be built now; the old instance is still in its place.
            KeyError: the profile has no such policy.
        """
        instance = self._build(policy)
        wired, before = self._wire(policy, instance), self._wired[policy]
        # One by one, as this may be interrupted anywhere
        self._wired[policy] = wired
        self._instances[policy] = instance
        before.let_go()

    def follow(self, before: Profile) -> None:
        """Take over again what `before`, which this was built with, has had rebuilt meanwhile.

        What had been taken over first ends when `before` is let go.

        Raises:
            ProfileError: it cannot be registered, whatever it raises. This runs where Ctrl-C is no
                KeyboardInterrupt, so that such an error is the policy's own.
        """
        for policy in self.kept:
            latest = before._instances[policy]
            if self._instances[policy] is not latest:
                try:
                    wired = self._wire(policy, latest)
                except KeyboardInterrupt as error:
                    raise _unusable(policy, error) from error
                before._left.append(self._wired[policy])
                self._wired[policy] = wired
                self._instances[policy] = latest

    def let_go(self) -> None:
        """Drop all instances now, not whenever the garbage collector finds them.

        Those that nobody else holds end here, so their finalizers run in the calling thread. The
        profile is of no use afterwards.
        """
        self._instances.clear()
        while self._left:
            self._left.pop().let_go()
        while self._wired:
            self._wired.popitem()[1].let_go()

    def _build_all(self, faults: list[str], before: Profile | None) -> dict[str, object]:
        """Instances of all policies, unless there are faults, or some come to light here."""
        faults += [
            f"options are given for {quoted(policy)}, which this profile does not use; "
            f"it uses {', '.join(self._active)}"
            for policy in self.options
            if policy not in self._active
        ]
        instances = {}
        for policy in self._active:
            if policy not in self._policies or faults_of(self._policies[policy]):
                continue  # told already
            try:
                self._made[policy] = self._read(policy)
                if before is not None and _are_equal(before._made.get(policy), self._made[policy]):
                    instances[policy] = before._instances[policy]
                    self.kept |= {policy}
                else:
                    instances[policy] = self._build(policy)
            except ProfileError as error:
                faults += error.faults
        if faults:
            raise ProfileError(*faults)
        return instances

    def _read(self, policy: str) -> _Made:
        cls = self._policies[policy]
        return _Made(cls, read_options(policy, cls, self.options.get(policy, {})))

    def _build(self, policy: str) -> object:
        return build_policy(policy, *self._made[policy])

    def _wire(self, policy: str, instance: object) -> _Wired:
        manager = _Manager(PROJECT)
        try:
            hooks = {*hooks_of(type(instance)), *dir(instance)} & {*ARGUMENTS}
            if hooks:  # else pluggy complains; it may have optional ones that are not ours
                manager.add_hookspecs(_specifications(frozenset(hooks)))
            manager.register(instance, name=policy)
            manager.check_pending()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it may answer whoever looks at it with anything
            raise _unusable(policy, error) from error
        if self._trace:
            trace_calls(manager)
        callers = {hook: getattr(manager.hook, hook) for hook in hooks}
        return _Wired(
            manager, {hook: each for hook, each in callers.items() if each.get_hookimpls()}
        )


def _unusable(policy: str, error: BaseException) -> ProfileError:
    return ProfileError(f"policy {policy!r} cannot be used: {reason_of(error)}")


@lru_cache(maxsize=1024)
def _specifications(hooks: frozenset[str]) -> ModuleType:
    """Those of some hooks alone: to read all of them takes as long as registering a policy."""
    some = ModuleType(hookspecs.__name__)
    vars(some).update({hook: getattr(hookspecs, hook) for hook in hooks})
    return some


def _are_equal(one: _Made | None, other: _Made) -> bool:
    try:
        return one == other
    except Exception:  # options are foreign code, and may hold what cannot be compared
        return False


def _as_tuples(chosen: Chosen) -> dict[str, tuple[str, ...]]:
    return {
        hook: (names,) if isinstance(names, str) else tuple(names) for hook, names in chosen.items()
    }


def _once(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _choice_faults(
    given: Mapping[str, tuple[str, ...]], told: Sequence[str], policies: Mapping[str, type]
) -> list[str]:
    faults: list[str] = []
    checked = {*DEFAULTS.values()}
    for hook, names in given.items():
        if hook in OBSERVERS:
            faults.append(
                f"{hook!r} is not chosen: every policy of the profile that has it is told"
            )
        elif hook not in DEFAULTS:
            faults.append(unknown("hook", hook, HOOKS))
        elif not names or (len(names) > 1 and hook not in LISTS):
            faults.append(f"{hook} is decided by one policy, not by {len(names)}")
        else:
            faults += [_fit(hook, name, policies) for name in names]
            checked.update(names)
    faults += [_fit(OBSERVER, name, policies) for name in told]
    for name in sorted((checked | {*told}) & {*policies}):
        faults += [f"policy {name!r} {fault}" for fault in faults_of(policies[name])]
    return [fault for fault in faults if fault]


def _fit(hook: str, policy: str, policies: Mapping[str, type]) -> str:
    """What is wrong with this policy for this hook; empty if nothing is."""
    if policy not in policies:
        return unknown_policy(policy, policies)
    wanted = {*OBSERVERS} if hook == OBSERVER else {hook}
    if wanted & {*hooks_of(policies[policy])} or hasattr(policies[policy], hook):
        return ""  # an unmarked method is a fault of its own
    fitting = ", ".join(sorted(name for name, cls in policies.items() if wanted & {*hooks_of(cls)}))
    verb = "observe anything" if hook == OBSERVER else f"decide {hook}"
    return f"policy {policy!r} does not {verb}; these do: {fitting or 'none'}"
