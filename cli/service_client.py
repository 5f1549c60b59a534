"""Asks a running service over HTTP, and says what went wrong as a person would."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from cadenza.cli.admin_key import VARIABLE, admin_key
from cadenza.cli.errors import UsageError
from cadenza.cli.options import ServerOptions
from cadenza.service.policy_report import PolicyReport

_TIMEOUT_S = 60.0  # the service answers within 55 s, whatever its engine does
_MAX_BYTES = 16 << 20

Answer = Mapping[str, Any]


class ServiceClient:
    """One running service."""

    def __init__(self, server: ServerOptions) -> None:
        """Raises UsageError for an address that is none."""
        self._url = _checked(server.server)
        self._key = admin_key(server.admin_api_key)
        self._opener = build_opener(ProxyHandler({}))  # a proxy would be told the key

    def report(self, method: str, path: str, body: bytes | None = None) -> PolicyReport:
        """The report that the service answers with.

        Raises:
            UsageError: nothing listens there, it refuses, or its answer is no report.
        """
        return self._understood(self._request(method, path, body))

    def raw_report(self, path: str) -> Answer:
        """The same, with all that a newer service has to say."""
        answer = self._request("GET", path)
        self._understood(answer)
        return answer

    def _understood(self, answer: Answer) -> PolicyReport:
        try:
            return msgspec.convert(answer, PolicyReport)
        except msgspec.ValidationError as error:
            raise UsageError(
                f"what answers at {self._url} is not Cadenza, or not this version: {error}"
            ) from error

    def _request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        headers = {"content-type": "application/json"}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        request = Request(self._url + path, data=body, headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as response:
                answer = json.loads(response.read(_MAX_BYTES))
        except HTTPError as error:
            raise UsageError(self._refusal(error)) from error
        except URLError as error:
            raise UsageError(self._silence(error.reason)) from error
        except OSError as error:
            raise UsageError(self._silence(error)) from error
        except (ValueError, HTTPException) as error:
            raise UsageError(f"what answers at {self._url} is not Cadenza") from error
        if not isinstance(answer, dict):
            raise UsageError(f"what answers at {self._url} is not Cadenza")
        return answer

    def _refusal(self, error: HTTPError) -> str:
        try:
            message = str(json.loads(error.read(_MAX_BYTES))["error"]["message"])
        except (OSError, ValueError, LookupError, TypeError):
            return f"{self._url} answers with HTTP status {error.code}, and not as Cadenza does"
        if error.code == 401:
            return f"{message} Here: --admin-api-key, or {VARIABLE}"
        return message

    def _silence(self, reason: object) -> str:
        if isinstance(reason, TimeoutError):
            return f"{self._url} does not answer within {_TIMEOUT_S:g} s"
        why = (reason.strerror if isinstance(reason, OSError) else None) or reason
        return (
            f"nothing answers at {self._url} ({why}); --server is the HTTP address that "
            "`cadenza serve` shows when it is ready"
        )


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or not url.isascii() or any(character <= " " for character in url):
        raise UsageError(f"--server {url} is no address such as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")
