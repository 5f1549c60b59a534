"""The server itself, after all the clients: nothing is left, and it answers as before."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

from tests.clients.case import LIMIT_S, Faulty, Result, Setting, expect, judged

RUNNING = re.compile(r"^cadenza:num_requests_(?:running|waiting)\{.*\} (\S+)$", re.MULTILINE)
FAILURES = re.compile(r'^cadenza:http_requests_total\{.*status="5.*$', re.MULTILINE)


def reference(url: str) -> Any:
    """A greedy answer that has to stay the same."""
    body = {"prompt": "The three largest cities of Italy are", "max_tokens": 16, "temperature": 0}
    return json.loads(_get(f"{url}/v1/completions", json.dumps(body).encode()))["choices"]


def cases(setting: Setting, before: Any) -> Iterator[Result]:
    """`before`: what `reference` was."""
    yield judged("server: nothing is left", lambda: _rest(setting.url))
    yield judged("server: no 5xx", lambda: _no_failures(setting.url))
    yield judged(
        "server: answers as before", lambda: expect(reference(setting.url), before, "answer")
    )


def _rest(url: str) -> None:
    """Clients that have left may still be being noticed; to look is a round trip, without sleep."""
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        load = json.loads(_get(f"{url}/load"))["server_load"]
        rows = [float(value) for value in RUNNING.findall(_get(f"{url}/metrics"))]
        if load == 0 and rows == [0.0, 0.0]:
            return
    raise Faulty(f"{load} requests, {rows} rows")


def _no_failures(url: str) -> None:
    found = FAILURES.findall(_get(f"{url}/metrics"))
    expect(found, [], "failures")


def _get(url: str, body: bytes | None = None) -> str:
    request = Request(url, body, {"content-type": "application/json"})
    with urlopen(request, timeout=LIMIT_S) as response:
        return str(response.read().decode())
