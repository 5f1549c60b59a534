"""The administrator's key, of the commands that talk to `cadenza serve`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from cadenza.cli.errors import UsageError
from cadenza.cli.options import is_usable_key

VARIABLE = "CADENZA_ADMIN_API_KEY"


def admin_key(flag: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """What the flag says, or else the environment, empty as if not set; None: there is none.

    Raises:
        UsageError: the variable's value cannot be a key. The flag has been checked.
    """
    key = flag if flag is not None else environment.get(VARIABLE) or None
    if key is not None and not is_usable_key(key):
        raise UsageError(f"{VARIABLE} must be printable ASCII without spaces, or not be set")
    return key
