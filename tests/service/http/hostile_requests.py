"""Hostile requests, which schemathesis makes from the OpenAPI document.

Of each operation: what the document allows, what it forbids, and what it allows but for one value
that no schema thinks of. The same seed and document give the same requests.

To a server each of them is an error of the client's, or none: see `send_all`.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import APIOperation, Case, GenerationMode

from cadenza.service.wishes import TIMEOUT_HEADER

BASE = "http://server"
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE")
QUERIES = ("", "?", "?%", "?a=%00&a=%ff", "?" + "&" * 2000, "?model=" + "x" * 4000, "?[]={}")

# As they stand in JSON, or nearly
PLANTS = (
    *("null", "true", "-0", "1e999", "-1e999", "NaN", "Infinity", "1e-999", "0.1e1", "01", "+1"),
    *("2147483648", "-2147483649", "9223372036854775808", "9" * 4000, "1" + "0" * 400 + ".0"),
    *('""', '"\\u0000"', '"\\ud800"', '"\\udc80\\udc81"', '"\\r\\n\\r\\n"', '"' + "x" * 5000 + '"'),
    *('"<|im_end|>"', '"<|end|>"', '"{{ 7 * 7 }}"', '"\u202e\ufeff\U0010ffff"', '"../../etc"'),
    *("[]", "{}", "[[]]", '[""]', "[null]", "[0.5]", "[" * 900 + "]" * 900, '{"":{"":{}}}'),
    *("[" + "0," * 3000 + "0]", '{"a":1,"a":[]}', '{"\\ud800":1}', "undefined", "'x'", "", "}"),
)
AT_ONCE = 8
_HERE = "\ue000"  # of a text that a plant takes the place of


@dataclass(frozen=True, slots=True)
class Hostile:
    """One request, ready to be sent."""

    kind: str  # allowed, forbidden, planted or method
    method: str
    target: str  # path and query
    headers: Mapping[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"{self.kind}: {self.method} {self.target[:200]} {self.headers} {self.body[:2000]!r}"


def hostile_requests(document: dict[str, Any], count: int, first_seed: int) -> Iterator[Hostile]:
    """At least so many, in turns of all operations."""
    operations = [
        operation.ok()
        for operation in schemathesis.openapi.from_dict(document).get_all_operations()
    ]
    yield from _other_methods(operations)
    takes_body = [operation for operation in operations if operation.body]
    rest = [operation for operation in operations if not operation.body]
    made = [request for operation in rest for request in _made(operation, count // 200, first_seed)]
    each = -(-(count - len(made)) // len(takes_body))
    made += [request for operation in takes_body for request in _made(operation, each, first_seed)]
    random.Random(first_seed).shuffle(made)
    yield from made


def narrowed(schema: Any, most: int) -> Any:
    """The document with no integer above `most`, so that more of what it allows is served.

    It cannot know the model's vocabulary and context, which refuse nearly all others.
    """
    if isinstance(schema, list):
        return [narrowed(each, most) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: narrowed(each, most) for name, each in schema.items()}
    if "integer" in inner.get("type", ()) and inner.get("minimum", 0) in (-1, 0, 1):
        inner["maximum"] = min(most, inner.get("maximum", most))
    return inner


def _made(operation: APIOperation, count: int, first_seed: int) -> list[Hostile]:
    """A quarter each of what is allowed and forbidden, the rest planted: that is made fastest."""
    share = -(-count // 4)
    chance = random.Random(first_seed)
    allowed = _generated(operation, GenerationMode.POSITIVE, share, first_seed)
    planted = [_planted(each, chance) for each in allowed * 2] if operation.body else []
    forbidden = _generated(operation, GenerationMode.NEGATIVE, share, first_seed)
    return allowed + forbidden + planted


def _generated(
    operation: APIOperation, mode: GenerationMode, count: int, first_seed: int
) -> list[Hostile]:
    made: list[Hostile] = []

    @seed(first_seed)
    @settings(
        max_examples=max(count, 1),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def keep(case: Case) -> None:
        kind = "allowed" if mode is GenerationMode.POSITIVE else "forbidden"
        made.append(_request(kind, case))

    try:
        keep()
    except Unsatisfiable:
        assert not operation.body  # what takes nothing has nothing forbidden
    return made


def _request(kind: str, case: Case) -> Hostile:
    told = case.as_transport_kwargs(BASE)
    del told["headers"]["X-Schemathesis-TestCaseId"]  # is drawn anew each time
    prepared = requests.Request(**told).prepare()
    body = prepared.body or b""
    return Hostile(
        kind=kind,
        method=str(prepared.method),
        target=str(prepared.url).removeprefix(BASE),
        headers={
            _text(name): _text(value)
            for name, value in prepared.headers.items()
            if _text(name).lower() not in ("content-length", "connection", "user-agent")
        },
        body=body.encode() if isinstance(body, str) else body,
    )


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def _planted(request: Hostile, chance: random.Random) -> Hostile:
    """The request with one value, at any depth, that is replaced or added."""
    try:
        body = json.loads(request.body)
    except ValueError:
        return replace(request, kind="planted", body=request.body[: len(request.body) // 2])
    place = body
    while isinstance(place, dict | list) and place:
        key: Any = (
            chance.choice([*place]) if isinstance(place, dict) else chance.randrange(len(place))
        )
        if not isinstance(place[key], dict | list) or not place[key] or chance.random() < 0.5:
            place[key] = _HERE
            break
        place = place[key]
    text = json.dumps(body).replace(json.dumps(_HERE), chance.choice(PLANTS))
    return replace(request, kind="planted", body=text.encode("utf-8", "surrogatepass"))


def _other_methods(operations: list[APIOperation]) -> Iterator[Hostile]:
    """Every path with every method and hostile queries."""
    for path in dict.fromkeys(operation.path for operation in operations):
        for number, method in enumerate(METHODS):
            names = {"id": "%00", "model": "%2e%2e%2f", "policy": "%F0%9F%8E%B5"}
            target = path.format_map({**names, "stream_id": "%00"})
            yield Hostile("method", method, target + QUERIES[number % len(QUERIES)], {}, b"")


async def send_all(http: httpx.AsyncClient, sent: Iterable[Hostile]) -> Counter[str]:
    """Send them, several at a time; how many had each status.

    Raises:
        AssertionError: one was answered with 5xx, was not answered, or not as it should be. Allowed
            are a 503 that says when to come back, and a 504 for who sets a timeout.
    """
    statuses: Counter[str] = Counter()
    waiting = iter(sent)

    async def send_some() -> None:
        for request in waiting:
            statuses[str(await _status(http, request))] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(send_some())
    return statuses


async def _status(http: httpx.AsyncClient, request: Hostile) -> int | str:
    headers = [(name.encode(), value.encode()) for name, value in request.headers.items()]
    try:
        response = await http.request(
            request.method, request.target, headers=headers, content=request.body
        )
    except (httpx.LocalProtocolError, httpx.InvalidURL):
        return "never sent"  # by this client
    except (AssertionError, httpx.HTTPError) as error:
        raise AssertionError(f"{error!r} for {request}") from error
    told = f"{response.status_code} {response.text[:500]} for {request}"
    if response.status_code == 503:
        assert {"retry-after", "retry-after-ms"} <= {*response.headers}, told
    elif response.status_code == 504:
        assert TIMEOUT_HEADER in request.headers, told
    else:
        assert response.status_code < 500, told
    return response.status_code
