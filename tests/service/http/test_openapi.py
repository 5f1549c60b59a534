"""/openapi.json is true: every route, every field, every error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from starlette.routing import Route, Router

from cadenza.service import errors
from cadenza.service.errors import InvalidRequest
from cadenza.service.http.chat import Chat
from cadenza.service.http.completions import Completions
from cadenza.service.http.openapi import document
from cadenza.service.http.operations import OPERATIONS
from cadenza.service.http.unsupported import NEUTRAL
from cadenza.service.limits import Limits
from cadenza.service.wishes import FORMS

from .conftest import OpenServed, Served
from .schemas import Document

DOCUMENT = Document(document("1", Limits(), with_admin=True))
MESSAGES = [{"role": "user", "content": "x"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NEEDED = {CHAT: {"messages": MESSAGES}, COMPLETIONS: {"prompt": "x"}}
COMPONENTS = {CHAT: "ChatCompletionRequest", COMPLETIONS: "CompletionRequest"}


def properties(name: str) -> dict[str, Any]:
    return DOCUMENT.told["components"]["schemas"][name]["properties"]


async def documented(served: Served) -> Document:
    return Document((await served.http.get("/openapi.json")).json())


@pytest.mark.parametrize("with_admin", [True, False])
def test_every_route_is_there_and_no_other(run, serve: OpenServed, with_admin: bool):
    async def main() -> None:
        async with serve(with_admin=with_admin) as served:
            told = {
                (method.upper(), path)
                for path, methods in (await documented(served)).told["paths"].items()
                for method in methods
            }
            assert told == {*routes(served)}

    run(main())


def test_the_page_about_requests_has_every_field_and_header():
    page = (Path(__file__).parents[3] / "docs" / "requests.md").read_text()
    told = {name for each in COMPONENTS.values() for name in properties(each)} | {*FORMS}
    missing = {name for name in told - {*NEUTRAL} if not re.search(rf"`{name}\b", page)}
    assert missing == {"model"}


def routes(served: Served) -> Iterator[tuple[str, str]]:
    router = served.app._app
    assert isinstance(router, Router)
    for route in router.routes:
        assert isinstance(route, Route)
        path = re.sub(r":\w+\}", "}", route.path)
        for method in (route.methods or set()) - {"HEAD"}:
            yield method, path


class Recorder(dict[str, Any]):
    """A body that knows which of its fields were looked at."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(body)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


@pytest.mark.parametrize(("path", "dialect"), [(CHAT, Chat()), (COMPLETIONS, Completions())])
def test_every_field_that_is_read_is_there_and_no_other(path: str, dialect: Any):
    body = Recorder({**NEEDED[path], "stream": True, "stream_options": {}})
    dialect.parse(body)

    assert body.read | {*NEUTRAL} == {*properties(COMPONENTS[path])}


VALUES: dict[str, list[Any]] = {
    "integer": [1.5, "1", True, [1]],
    "number": ["1", True, [1]],
    "string": [1, True, ["x"], {}],
    "boolean": [0, 1, "true", []],
    "array": [1, "x", {}],
    "object": [1, "x", []],
}


def wrong_values(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Values just beyond what a schema allows, and of other types."""
    [kind] = {*schema.get("type", ())} - {"null"} or {None}
    if kind is not None:
        yield from VALUES[kind]
    for bound, step in (("minimum", -1), ("maximum", 1), ("exclusiveMinimum", 0)):
        if bound in schema:
            yield schema[bound] + step
    if "maxLength" in schema:
        yield "x" * (schema["maxLength"] + 1)
    if "minLength" in schema:
        yield ""
    if "maxItems" in schema:
        yield [1] * (schema["maxItems"] + 1)


def bounds(schema: Mapping[str, Any]) -> Iterator[Any]:
    for bound in ("minimum", "maximum"):
        if bound in schema:
            yield schema[bound]
    if "maxLength" in schema:
        yield "x" * schema["maxLength"]
    if schema.get("type") == ["boolean", "null"]:
        yield from (True, False)


# What a value needs beside it, so that nothing else is wrong
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    (CHAT, "stream_options"): {"stream": True},
    (COMPLETIONS, "stream_options"): {"stream": True},
    (CHAT, "stream_id"): {"stream": True},
    (COMPLETIONS, "stream_id"): {"stream": True},
    (CHAT, "top_logprobs"): {"logprobs": True},
}
# Allowed by themselves; the model's context, or another field, has a say as well
DEPENDENT = {"max_tokens", "max_completion_tokens", "min_tokens", "best_of", "stream"}


def plain_fields(path: str) -> list[tuple[str, dict[str, Any]]]:
    """Those of one plain type."""
    return [
        (name, schema)
        for name, schema in properties(COMPONENTS[path]).items()
        if "type" in schema and name not in NEEDED[path]
    ]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_the_document_forbids_is_refused_by_name(run, serve: OpenServed, path: str):
    async def main() -> None:
        async with serve() as served:
            for name, schema in plain_fields(path):
                for value in wrong_values(schema):
                    body = {**NEEDED[path], **BESIDE.get((path, name), {}), name: value}
                    response = await served.http.post(path, json=body)
                    assert response.status_code in (400, 404), (name, value)
                    told = response.json()["error"]["param"]
                    assert told is not None, (name, value)
                    assert told.startswith(name), (name, value)

    run(main())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_the_document_allows_is_taken(run, serve: OpenServed, path: str):
    async def main() -> None:
        async with serve() as served:
            fields = properties(COMPONENTS[path])
            for name, schema in fields.items():
                values = [*bounds(schema), *schema.get("enum", ())]
                values += [each for one in schema.get("anyOf", ()) for each in one.get("enum", ())]
                if name in DEPENDENT | {"model"} or name in NEEDED[path]:
                    values = []
                for value in (*values, *(() if name in NEEDED[path] else (None,))):
                    beside = {} if value is None else BESIDE.get((path, name), {})
                    body = {"max_tokens": 2, **NEEDED[path], **beside, name: value}
                    response = await served.http.post(path, json=body)
                    assert response.status_code == 200, (name, value, response.text)

    run(main())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_no_tokens_may_be_asked_for_beside_what_tells_of_the_prompt(
    run, serve: OpenServed, path: str, field: str
):
    assert properties(COMPONENTS[path])[field]["minimum"] == 0

    async def main() -> None:
        async with serve() as served:
            for beside in ({"echo": True}, {"prompt_logprobs": 1}):
                body = {**NEEDED[path], field: 0, **beside}
                response = await served.http.post(path, json=body)
                assert response.status_code == 200, response.text
            response = await served.http.post(path, json={**NEEDED[path], field: 0})
            assert response.json()["error"]["param"] == field

    run(main())


TOKENIZE, PROFILE = "/tokenize", "/v1/policies/profile"
SHAPES: list[tuple[str, Any, bool]] = [
    (CHAT, {"messages": [{"role": "user"}]}, False),
    (CHAT, {"messages": [{"role": "system", "content": None}]}, False),
    (CHAT, {"messages": [*MESSAGES, {"role": "assistant", "content": None}]}, True),
    (CHAT, {"messages": [*MESSAGES, {"role": "assistant"}]}, True),
    (CHAT, {"messages": MESSAGES, "best_of": 0}, False),
    (COMPLETIONS, {"prompt": [""]}, False),
    (COMPLETIONS, {"prompt": ["x", [1]]}, True),
    (COMPLETIONS, {"prompt": None}, False),
    (TOKENIZE, {}, False),
    (TOKENIZE, {"prompt": "x", "messages": MESSAGES}, False),
    (TOKENIZE, {"prompt": None, "messages": None}, False),
    (TOKENIZE, {"prompt": "x", "messages": None}, True),
    (TOKENIZE, {"messages": MESSAGES}, True),
    (PROFILE, {}, True),
    (PROFILE, {"preset": None}, True),
    (PROFILE, {"decisions": None}, False),
    (PROFILE, {"options": None}, False),
    (PROFILE, {"policies": {}}, False),
    (PROFILE, {"decisions": {"order": "edf", "guard_starvation": ["max-wait"]}}, True),
    (PROFILE, {"decisions": {"orders": "edf"}}, False),
    (PROFILE, {"decisions": {"order": None}}, False),
]


@pytest.mark.parametrize(("path", "body", "is_allowed"), SHAPES)
def test_the_document_knows_which_shapes_are_taken(
    run, serve: OpenServed, path: str, body: Any, is_allowed: bool
):
    method = "put" if path == PROFILE else "post"
    schema = DOCUMENT.told["paths"][path][method]["requestBody"]["content"]["application/json"]
    validator = jsonschema_rs.validator_for({**DOCUMENT.told, **schema["schema"]})
    assert validator.is_valid(body) is is_allowed

    async def main() -> None:
        async with serve() as served:
            response = await served.http.request(method, path, json=body)
            assert response.status_code == (200 if is_allowed else 400), response.text

    run(main())


HEADERS: list[tuple[str, str, bool]] = [
    ("x-slo-ttft-ms", "250", True),
    ("x-slo-ttft-ms", "0.25", True),
    ("x-slo-ttft-ms", "soon", False),
    ("x-slo-tpot-ms", "-1", False),
    ("x-slo-tpot-ms", "1e3", False),
    ("x-slo-tpot-ms", "", False),
    ("x-request-timeout-ms", "60000", True),
    ("x-request-timeout-ms", "1m", False),
    ("x-gateway-inference-fairness-id", "team-a/7", True),
    ("x-gateway-inference-fairness-id", "team a", False),
    ("x-gateway-inference-fairness-id", "x" * 129, False),
]


@pytest.mark.parametrize(("name", "value", "is_allowed"), HEADERS)
def test_the_document_knows_the_form_of_headers(
    run, serve: OpenServed, name: str, value: str, is_allowed: bool
):
    [told] = [
        each["schema"]
        for each in DOCUMENT.told["paths"][CHAT]["post"]["parameters"]
        if each["name"] == name
    ]
    assert jsonschema_rs.validator_for(told).is_valid(value) is is_allowed

    async def main() -> None:
        async with serve() as served:
            response = await served.http.post(CHAT, json=NEEDED[CHAT], headers={name: value})
            assert response.status_code == (200 if is_allowed else 400)

    run(main())


def test_bodies_that_lack_what_is_required_are_refused(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            for operation in OPERATIONS:
                if operation.takes is None:
                    continue
                schema = DOCUMENT.told["components"]["schemas"][operation.takes]
                response = await served.http.request(operation.method, operation.path, json={})
                required = schema.get("required", ())
                if operation.takes == "TokenizeRequest":
                    required = ("prompt",)
                assert response.status_code == (400 if required else 200), operation.path
                if required:
                    assert response.json()["error"]["param"] == required[0]

    run(main())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {**NEEDED[CHAT], "logprobs": True, "top_logprobs": 2, "n": 2}),
        (COMPLETIONS, {"prompt": ["x", [1]], "logprobs": 1, "stop": "1"}),
        (CHAT, {**NEEDED[CHAT], "stream_options": {"include_usage": True}}),
        (COMPLETIONS, {"prompt": "x", "stream_options": {"include_usage": True}, "logprobs": 0}),
        (COMPLETIONS, {"prompt": "x"}),
        (COMPLETIONS, {"prompt": "xyz", "echo": True, "logprobs": 2}),
    ],
)
def test_every_event_is_as_the_document_says(run, serve: OpenServed, path: str, body: Any):
    async def main() -> None:
        async with serve() as served:
            schema = DOCUMENT.told["paths"][path]["post"]["responses"]["200"]["content"]
            *events, done = await served.events(path, {**body, "max_tokens": 3})
            assert done == "[DONE]"
            for event in events:
                assert not DOCUMENT.faults(event, schema["text/event-stream"]["schema"])

    run(main())


def test_every_page_is_as_the_document_says(run, serve: OpenServed):
    """What each response of these tests is held against, the fixture does."""

    async def main() -> None:
        async with serve() as served:
            body = {**NEEDED[CHAT], "logprobs": True, "top_logprobs": 2, "max_tokens": 2, "n": 2}
            name = (await served.http.post(CHAT, json=body)).json()["id"]
            body = {**NEEDED[COMPLETIONS], "logprobs": 2, "max_tokens": 2, "stop": "1"}
            await served.http.post(COMPLETIONS, json=body)
            for path in (CHAT, COMPLETIONS):
                scoring = {**NEEDED[path], "echo": True, "prompt_logprobs": 2, "max_tokens": 1}
                await served.http.post(path, json=scoring)
            told = (await documented(served)).told["paths"]
            for path, methods in told.items():
                for method in methods:
                    names = {"id": name, "model": "tiny", "policy": "edf", "stream_id": "x"}
                    there = path.format_map(names)
                    await served.http.request(method, there, json={"prompt": "x", "tokens": [1]})

    run(main())


def test_just_the_administrators_operations_ask_for_the_key(run, serve: OpenServed):
    async def main() -> None:
        async with serve(admin_key="s3cret") as served:
            for operation in OPERATIONS:
                names = {"id": "x", "model": "tiny", "policy": "fcfs", "stream_id": "x"}
                path = operation.path.format_map(names)
                for headers in ({}, {"authorization": "Bearer wrong"}):
                    response = await served.http.request(
                        operation.method, path, headers=headers, json={}
                    )
                    assert (response.status_code == 401) is operation.is_admin, operation.path

    run(main())


def test_every_error_has_its_place():
    schema = properties("Error")["error"]["properties"]
    named = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.RequestError)
    } - {errors.RequestError}
    listed = {error for operation in OPERATIONS for error in operation.errors}
    assert listed == named
    for kind in named:
        status = errors.status_of_kind(kind)
        assert status.type in schema["type"]["enum"]
        assert status.code in schema["code"]["enum"]
    assert errors.status_of(InvalidRequest("x")) == errors.status_of_kind(InvalidRequest)


def test_the_limits_are_those_in_force(run, serve: OpenServed):
    async def main() -> None:
        async with serve(limits=Limits(max_choices=3)) as served:
            told = (await documented(served)).told["components"]["schemas"]
            assert told["CompletionRequest"]["properties"]["n"]["maximum"] == 3

    run(main())


def test_references_and_names_are_whole():
    text = json.dumps(DOCUMENT.told)
    for name in re.findall(r'"#/components/schemas/(\w+)"', text):
        assert name in DOCUMENT.told["components"]["schemas"]
    ids = re.findall(r'"operationId": "(\w+)"', text)
    assert len(ids) == len({*ids}) == len(OPERATIONS)
    for operation in OPERATIONS:
        parameters = DOCUMENT.told["paths"][operation.path][operation.method.lower()].get(
            "parameters", ()
        )
        there = {each["name"] for each in parameters if each["in"] == "path"}
        assert there == {*re.findall(r"\{(\w+)\}", operation.path)}


class Page(HTMLParser):
    """The tags of a page, which must be closed, and what it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag != "meta":
            self.open.append(tag)
        for name, value in attrs:
            if name == "href":
                self.links.add(value or "")
            elif name == "id":
                self.anchors.add(value or "")
            else:
                assert name in ("lang", "charset"), "nothing that fetches or runs"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_the_document_and_needs_no_network(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            response = await served.http.get("/docs")
            policy = response.headers["content-security-policy"]
            assert policy == "default-src 'none'; style-src 'unsafe-inline'"
            page = Page(response.text)
            assert not page.open
            assert not page.tags & {"script", "link", "img", "iframe"}
            assert "url(" not in response.text
            told = (await documented(served)).told
            for path in told["paths"]:
                assert path in page.text
            for name, schema in told["components"]["schemas"].items():
                assert name in page.anchors
                for field in schema.get("properties", ()):
                    assert field in page.text
            assert page.links == {"/openapi.json"} | {
                f"#{name}" for name in page.anchors if f'href="#{name}"' in response.text
            }

    run(main())
