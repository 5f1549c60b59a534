"""Who may change how the service works, over either protocol."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import urlsplit

from cadenza.service.errors import Forbidden, Unauthenticated
from cadenza.service.listening import is_loopback
from cadenza.service.policy_control import PolicyControl

_SCHEME = "bearer"

# Whoever passes a request on says for whom by one of these; that one is not on this machine
_PASSED_ON = ("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip")
_PASSED_ON_PREFIXES = ("x-forwarded-", "x-original-forwarded-", "x-envoy-")

_GET_A_KEY = "start it with --admin-api-key or CADENZA_ADMIN_API_KEY"


class AdminAccess:
    """Lets those in who have the administrator's key.

    Without a key everybody on this machine is let in, if the service listens on loopback alone. A
    proxy on this machine that leaves no trace in what it passes on cannot be told from them.
    """

    def __init__(self, key: str | None, *, is_local: bool) -> None:
        """`is_local`: whether only this machine can reach the service."""
        self._digest = None if key is None else _digest(key)
        self._is_local = is_local

    def check(self, headers: Iterable[tuple[str, str]]) -> None:
        """Let a request pass, by all its headers, or metadata, whose names are in lower case.

        Raises:
            Unauthenticated: it has no key, a wrong one, or several.
            Forbidden: it comes from a web page, or it needs a key and nobody could have one.
        """
        told: dict[str, list[str]] = {}
        for name, value in headers:
            told.setdefault(name, []).append(value)
        if "origin" in told:
            # A page that an operator happens to visit may send requests to loopback
            raise Forbidden("Web pages may not administer the service: leave out `Origin`.")
        if self._digest is not None:
            self._check_key(told.get("authorization", []), self._digest)
        elif not self._is_local:
            raise Forbidden(
                "Other machines can reach this service and it has no administrator's key, so "
                f"nobody may administer it; {_GET_A_KEY}, or let it listen on loopback."
            )
        else:
            _check_that_local(told)

    def _check_key(self, given_keys: list[str], digest: bytes) -> None:
        if len(given_keys) > 1:
            raise Unauthenticated("There are several `Authorization`s: send one.")
        scheme, _, given = "".join(given_keys).partition(" ")
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


def _check_that_local(told: dict[str, list[str]]) -> None:
    """Raises Forbidden for what reached loopback, and yet is not of this machine."""
    passed_on = [name for name in told if _says_passed_on(name)]
    if passed_on:
        raise Forbidden(
            f"A proxy has passed this request on (`{passed_on[0]}`), so it may be anybody's, and "
            f"the service has no administrator's key; {_GET_A_KEY}."
        )
    # A web page may let its own name mean 127.0.0.1, and needs no `Origin` then in order to read.
    # gRPC keeps the name to itself, but is not spoken by pages.
    if not all(map(_is_local, told.get("host", []))):
        raise Forbidden(
            "Without an administrator's key the service is called by a name of loopback, such as "
            f"127.0.0.1 or localhost, and by no other `Host`; or {_GET_A_KEY}."
        )


def _says_passed_on(name: str) -> bool:
    return name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)


def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name is not None and "@" not in host and is_loopback(name)


def _digest(key: str) -> bytes:
    """Of one length whatever the key's, so that comparing tells nothing about it."""
    return sha256(key.encode(errors="surrogateescape")).digest()
