"""/openapi.json, and the same for people at /docs: a page without scripts that fetches nothing."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cadenza.service.errors import status_of_kind
from cadenza.service.http.answered import answered
from cadenza.service.http.asked import asked
from cadenza.service.http.docs_page import render
from cadenza.service.http.operations import OPERATIONS, Operation
from cadenza.service.http.resumable import PLACE, PLACE_HEADER
from cadenza.service.http.schema import TEXT, either, ref
from cadenza.service.limits import Limits
from cadenza.service.wishes import FORMS

_KEY = "administrator"
_FORMS = {**FORMS, PLACE_HEADER: PLACE}
_EMPTY = {200: "Yes.", 204: "Nothing is left of the stream.", 503: "No."}


def document(version: str, limits: Limits, *, with_admin: bool) -> dict[str, Any]:
    """The OpenAPI document of a service with these limits."""
    paths: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for operation in OPERATIONS:
        if with_admin or not operation.is_admin:
            paths[operation.path][operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Cadenza", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": dict(paths),
        "components": {
            "schemas": {**asked(limits), **answered()},
            "securitySchemes": {_KEY: {"type": "http", "scheme": "bearer"}},
        },
    }


def openapi_routes(version: str, limits: Limits, *, with_admin: bool) -> list[Route]:
    """The routes of the document and its page, which are written once."""
    told = document(version, limits, with_admin=with_admin)
    json, page = msgspec.json.encode(told), render(told)

    async def openapi(request: Request) -> Response:
        return Response(json, media_type="application/json")

    async def docs(request: Request) -> Response:
        headers = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return Response(page, media_type="text/html", headers=headers)

    return [Route("/openapi.json", openapi), Route("/docs", docs)]


def _operation(operation: Operation) -> dict[str, Any]:
    told: dict[str, Any] = {
        "summary": operation.summary,
        "tags": [operation.tag],
        "operationId": _id(operation),
        "responses": _responses(operation),
    }
    if parameters := [*_path_parameters(operation.path), *map(_header, operation.headers)]:
        told["parameters"] = parameters
    if operation.takes:
        told["requestBody"] = {"required": True, "content": _json(operation.takes)}
    if operation.is_admin:
        told["security"] = [{_KEY: []}, {}]  # without a key the service listens on loopback alone
    return told


def _id(operation: Operation) -> str:
    words = re.findall("[a-z]+", operation.path)
    return operation.method.lower() + "".join(word.capitalize() for word in words)


def _responses(operation: Operation) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    if operation.tells:
        content = _json(operation.tells)
        if operation.streams:
            event = either(ref(operation.streams), ref("Notice"))
            content |= {"text/event-stream": {"schema": event}}
        responses["200"] = {"description": "The answer.", "content": content}
    elif operation.streams:
        content = {"text/event-stream": {"schema": ref(operation.streams)}}
        responses["200"] = {"description": "The answer.", "content": content}
    elif operation.text_type:
        content = {operation.text_type: {"schema": TEXT}}
        responses["200"] = {"description": "The answer.", "content": content}
    for status in operation.empty_statuses:
        responses[str(status)] = {"description": _EMPTY[status]}
    for status, codes in sorted(_refusals(operation).items()):
        responses[str(status)] = {
            "description": f"{HTTPStatus(status).phrase}: {', '.join(codes)}",
            "content": _json("Error"),
        }
    return responses


def _refusals(operation: Operation) -> dict[int, list[str]]:
    """What can be refused: codes by status. Anything may go wrong in the server."""
    refusals: defaultdict[int, list[str]] = defaultdict(list)
    for error in operation.errors:
        status = status_of_kind(error)
        refusals[status.http].append(str(status.code))
    for number in operation.statuses:
        refusals[number].append("no code")
    if operation.takes:
        refusals[500].append("no code")
    return dict(refusals)


def _path_parameters(path: str) -> Iterable[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)\}", path):
        yield {"name": name, "in": "path", "required": True, "schema": TEXT}


def _header(name: str) -> dict[str, Any]:
    schema = {**TEXT, "pattern": f"^{_FORMS[name].pattern}$"}
    return {"name": name, "in": "header", "required": False, "schema": schema}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": ref(name)}}
