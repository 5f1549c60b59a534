"""The hook by which a plugin says which policies it has."""

from __future__ import annotations

from collections.abc import Sequence

from cadenza.policies.markers import hookspec


@hookspec
def register_policies() -> Sequence[type]:
    """Return the policy classes of this plugin.

    Called once, when the service or the command starts, on the module or object that an entry
    point of the group `cadenza` names. Registered policies do nothing until a profile chooses them.
    """
    raise NotImplementedError
