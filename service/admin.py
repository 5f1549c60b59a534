"""Who may change how the service works, over either protocol."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256

from cadenza.service.errors import Forbidden, Unauthenticated
from cadenza.service.policy_control import PolicyControl

_SCHEME = "bearer"


class AdminAccess:
    """Lets those in who have the administrator's key.

    Without a key everybody is let in who can reach a service that listens on loopback alone.
    """

    def __init__(self, key: str | None, *, is_local: bool) -> None:
        """`is_local`: whether only this machine can reach the service."""
        self._digest = None if key is None else _digest(key)
        self._is_local = is_local

    def check(self, authorization: str | None, origin: str | None) -> None:
        """Let a request pass, by its headers, or metadata, of these names.

        Raises:
            Unauthenticated: it has no key, or a wrong one.
            Forbidden: it comes from a web page, or nobody could have a key.
        """
        if origin is not None:
            # A page that an operator happens to visit may send requests to loopback
            raise Forbidden("Web pages may not administer the service: leave out `Origin`.")
        if self._digest is not None:
            self._check_key(authorization, self._digest)
        elif not self._is_local:
            raise Forbidden(
                "Other machines can reach this service and it has no administrator's key, so "
                "nobody may administer it. Start it with --admin-api-key or "
                "CADENZA_ADMIN_API_KEY, or let it listen on loopback."
            )

    def _check_key(self, authorization: str | None, digest: bytes) -> None:
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != _SCHEME or not given:
            raise Unauthenticated(
                "The administrator's key is missing: send `Authorization: Bearer KEY`."
            )
        if not hmac.compare_digest(_digest(given.strip()), digest):
            raise Unauthenticated("This is not the administrator's key.")


@dataclass(frozen=True, slots=True)
class Admin:
    """What there is to administer, and who may."""

    policies: PolicyControl
    access: AdminAccess


def _digest(key: str) -> bytes:
    """Of one length whatever the key's, so that comparing tells nothing about it."""
    return sha256(key.encode(errors="surrogateescape")).digest()
