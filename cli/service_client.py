"""Asks a running service over HTTP, and says what went wrong as a person would."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import msgspec

from cadenza.cli.admin_key import VARIABLE, admin_key
from cadenza.cli.errors import UsageError
from cadenza.cli.options import ServerOptions
from cadenza.service.policy_report import PolicyReport

_TIMEOUT_S = 60.0  # the service answers within 55 s, whatever its engine does
_STREAM_TIMEOUT_S = 600.0  # between two events; a request may wait in a queue for long
_MAX_BYTES = 16 << 20
_NO_JSON = (ValueError, RecursionError)

# By metric, its labels and what they are for a scheduler
_LIMITS = {
    "cache_config_info": {"block_size": "block_size", "num_gpu_blocks": "num_blocks"},
    "scheduler_limits_info": {
        name: name
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_host_blocks")
    },
}

Answer = Mapping[str, Any]


class StreamCut(Exception):
    """A stream that had begun is not whole. The message is one sentence for a person."""


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Take the redirect for the refusal that it is."""


class ServiceClient:
    """One running service."""

    def __init__(self, server: ServerOptions, *, as_administrator: bool = True) -> None:
        """`as_administrator`: whether the service is told the key, if there is one.

        Raises:
            UsageError: the address is none, or the key cannot be one.
        """
        self._url = _checked(server.server)
        self._key = admin_key(server.admin_api_key) if as_administrator else None
        # A proxy would be told the key, and so would whoever an answer points to
        self._opener = build_opener(ProxyHandler({}), _NoRedirects)

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

    def limits(self) -> dict[str, int]:
        """Limits of the scheduler by name, and `num_blocks` and `block_size` of its pool.

        Raises:
            UsageError: nothing listens there, it is not Cadenza, or its model still loads.
        """
        with self._opened("GET", "/metrics", None, _TIMEOUT_S) as response:
            text = response.read(_MAX_BYTES).decode(errors="replace")
        labels: dict[str, str] = {}
        for name, renamed in _LIMITS.items():
            found = re.search(rf"^cadenza:{name}\{{([^}}]*)\}} 1", text, re.MULTILINE)
            if found is None:
                raise UsageError(f"{self._url} tells no limits: it loads, or is not Cadenza")
            given = dict(re.findall(r'(\w+)="([^"]*)"', found[1]))
            labels |= {ours: given.get(theirs, "") for theirs, ours in renamed.items()}
        if not all(value.isdigit() for value in labels.values()):
            raise UsageError(f"what answers at {self._url} is not Cadenza, or not this version")
        return {name: int(value) for name, value in labels.items()}

    def stream(self, path: str, body: bytes) -> Generator[Answer, None, None]:
        """The events of a stream as they come; closing the iterator leaves the service.

        Raises:
            UsageError: nothing listens there, or it refuses.
            StreamCut: the stream ended before it was whole.
        """
        with self._opened("POST", path, body, _STREAM_TIMEOUT_S) as response:
            try:
                yield from _events(response)
            except (OSError, HTTPException) as error:
                raise StreamCut(f"{self._url} broke off: {error}") from error

    def _understood(self, answer: Answer) -> PolicyReport:
        try:
            return msgspec.convert(answer, PolicyReport)
        except msgspec.ValidationError as error:
            raise UsageError(
                f"what answers at {self._url} is not Cadenza, or not this version: {error}"
            ) from error

    def _request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        with self._opened(method, path, body, _TIMEOUT_S) as response:
            answer = json.loads(response.read(_MAX_BYTES))
        if not isinstance(answer, dict):
            raise UsageError(f"what answers at {self._url} is not Cadenza")
        return answer

    @contextmanager
    def _opened(
        self, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> Iterator[HTTPResponse]:
        """The answer, of which nothing has been read. What goes wrong then is told as well."""
        headers = {"content-type": "application/json"}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        request = Request(self._url + path, data=body, headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=timeout_s) as response:
                yield response
        except HTTPError as error:
            raise UsageError(self._refusal(error)) from error
        except URLError as error:
            raise UsageError(self._silence(error.reason, timeout_s)) from error
        except OSError as error:
            raise UsageError(self._silence(error, timeout_s)) from error
        except (*_NO_JSON, HTTPException) as error:
            raise UsageError(f"what answers at {self._url} is not Cadenza") from error

    def _refusal(self, error: HTTPError) -> str:
        try:
            message = str(json.loads(error.read(_MAX_BYTES))["error"]["message"])
        except (OSError, HTTPException, *_NO_JSON, LookupError, TypeError):
            return f"{self._url} answers with HTTP status {error.code}, and not as Cadenza does"
        if error.code == 401:
            return f"{message} Here: --admin-api-key, or {VARIABLE}"
        return message

    def _silence(self, reason: object, timeout_s: float) -> str:
        if isinstance(reason, TimeoutError):
            return f"{self._url} does not answer within {timeout_s:g} s"
        why = (reason.strerror if isinstance(reason, OSError) else None) or reason
        return (
            f"nothing answers at {self._url} ({why}); the address is the one of HTTP that "
            "`cadenza serve` shows when it is ready"
        )


def _events(response: HTTPResponse) -> Iterator[Answer]:
    """The events of a response, up to the one that says that it is whole."""
    for line in response:
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        if not line.startswith(b"data:"):
            continue  # what parts events, or a comment
        try:
            event = json.loads(data)
        except _NO_JSON:
            event = None
        if not isinstance(event, dict):
            raise StreamCut("the service sent an event that is none of ours")
        if event.get("error") is not None:
            raise StreamCut(_message(event))
        yield event
    raise StreamCut("the service broke off")


def _message(event: Answer) -> str:
    try:
        return str(event["error"]["message"])
    except (LookupError, TypeError):
        return "the service failed"


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or not url.isascii() or any(character <= " " for character in url):
        raise UsageError(f"{url} is no address such as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")
