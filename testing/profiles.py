"""Profiles of policies that are registered nowhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cadenza.policies.builtin import BUILTIN
from cadenza.policies.profile import Options, Profile

Policy = type | str
Chosen = Mapping[str, Policy | Sequence[Policy]]


def profile_of(chosen: Chosen | Profile | None = None, options: Options | None = None) -> Profile:
    """A profile in which these policies decide, given as classes or by the names of built-in ones.

        profile_of({"order_admissions": MyPolicy}, {"my-policy": {"weight": 2}})

    Args:
        chosen: hook, or "observer", to one policy, or to several where the hook has several. A
            profile is returned as it is.
        options: by policy name.

    Raises:
        ProfileError: what a service would refuse at its start.
    """
    if isinstance(chosen, Profile):
        return chosen
    policies: dict[str, type] = dict(BUILTIN)
    names: dict[str, list[str]] = {}
    for hook, given in (chosen or {}).items():
        several = [given] if isinstance(given, (type, str)) else list(given)
        names[hook] = [each if isinstance(each, str) else _name(each) for each in several]
        policies |= {_name(each): each for each in several if isinstance(each, type)}
    return Profile(names, policies, options)


def _name(policy: type) -> str:
    return str(getattr(policy, "name", policy.__qualname__))
