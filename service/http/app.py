"""The ASGI application: its routes, and the boundary that turns every failure into JSON."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from importlib.metadata import version

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cadenza.service import tracing
from cadenza.service.admin import Admin
from cadenza.service.errors import UNEXPECTED, RequestError
from cadenza.service.generator import Generator
from cadenza.service.http.caches import cache_routes
from cadenza.service.http.chat import Chat
from cadenza.service.http.completions import Completions
from cadenza.service.http.connection import Connection, connection_of
from cadenza.service.http.endpoint import Endpoint
from cadenza.service.http.errors import ClientGone, error_response, plain_error
from cadenza.service.http.metrics import Exporter
from cadenza.service.http.openapi import openapi_routes
from cadenza.service.http.pages import pages
from cadenza.service.http.policies import policy_routes
from cadenza.service.http.requests import request_routes
from cadenza.service.http.resumable import stream_routes
from cadenza.service.http.tokens import token_routes
from cadenza.service.http.traffic import NumConnections, Traffic

logger = structlog.get_logger(__name__)

# uvicorn waits for a client to read before a write, never within one
_MAX_WRITE_BYTES = 64 << 10

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def build_app(
    generator: Generator,
    admin: Admin | None = None,
    *,
    metrics_as_vllm: bool = True,
    num_connections: NumConnections = dict,
) -> ASGIApp:
    """The application for one generator, with the routes of its administrator if there is one.

    It needs no lifespan. `metrics_as_vllm`: whether metrics go by vLLM's names as well as ours.
    `num_connections` tells them how many connections there are of each protocol.
    """
    traffic = Traffic()
    exporter = Exporter(generator, traffic, num_connections, as_vllm=metrics_as_vllm)
    own_version = version("cadenza")  # now, because looking it up reads files
    routes = [
        Route("/v1/chat/completions", Endpoint(generator, Chat()), methods=["POST"]),
        Route("/v1/completions", Endpoint(generator, Completions()), methods=["POST"]),
        *token_routes(generator),
        *request_routes(generator, admin),
        *stream_routes(generator),
        *pages(generator, exporter, own_version),
        *openapi_routes(own_version, generator.limits, with_admin=admin is not None),
    ]
    if admin is not None:
        routes += [*cache_routes(generator, admin), *policy_routes(admin)]
    return Boundary(Router(routes, redirect_slashes=False), traffic)


class Boundary:
    """Answers for whatever the application raises, and echoes a well-formed x-request-id."""

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is served, not {scope['type']}")
        scope["app"] = self  # makes the router raise 404 and 405 rather than answer in plain text
        reply = Reply(send, connection_of(scope), _request_id(scope))
        tracing.remember_caller(Headers(scope=scope).items())
        # For this task, whose context may be that of the one before it on the connection
        structlog.contextvars.bind_contextvars(request_id=reply.request_id)
        began_s = time.monotonic()
        try:
            await self._guarded(scope, receive, reply)
        finally:
            self._traffic.count(scope, reply.status, time.monotonic() - began_s)

    async def _guarded(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        try:
            await self._answered(scope, receive, reply)
        except ClientGone:
            logger.info("client_gone", path=scope["path"])

    async def _answered(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        try:
            await self._app(scope, receive, reply.send)
        except ClientGone:
            raise
        except Exception as error:
            if reply.status is not None:
                logger.exception("response_cut", path=scope["path"])
                connection_of(scope).abort_later()
                return  # uvicorn closes the connection: the body was not completed
            await _response(error, scope)(scope, receive, reply.send)


class Reply:
    """The way back to the client, which knows whether it was taken."""

    def __init__(self, send: Send, connection: Connection, request_id: str | None) -> None:
        self.status: int | None = None  # None: not begun
        self.request_id = request_id
        self._send = send
        self._connection = connection

    async def send(self, message: Message) -> None:
        """Send a part of the response, in small writes.

        Raises:
            ClientGone: the client has not read for `send_s`; the connection has been aborted.
        """
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.request_id is not None:
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                headers["x-request-id"] = self.request_id
                message = {**message, "headers": headers.raw}
        for part in _parts(message):
            await self._send_in_time(part)

    async def _send_in_time(self, message: Message) -> None:
        if not self._connection.write_waits:
            await self._send(message)  # at once
            return
        try:
            async with asyncio.timeout(self._connection.limits.send_s):
                await self._send(message)
        except TimeoutError as error:
            self._connection.abort()
            raise ClientGone from error  # as good as gone, and it holds a seat in vain


def _parts(message: Message) -> Iterator[Message]:
    """The message as several, none with more than _MAX_WRITE_BYTES of body."""
    body = message.get("body", b"")
    last = max(0, len(body) - 1) // _MAX_WRITE_BYTES * _MAX_WRITE_BYTES
    for start in range(0, last, _MAX_WRITE_BYTES):
        yield {**message, "body": body[start : start + _MAX_WRITE_BYTES], "more_body": True}
    yield {**message, "body": body[last:]} if last else message


def _request_id(scope: Scope) -> str | None:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else None


def _response(error: Exception, scope: Scope) -> Response:
    match error:
        case RequestError():
            return error_response(error)
        case HTTPException():
            headers = dict(error.headers) if error.headers else None
            return plain_error(error.status_code, error.detail, headers)
    logger.error("request_failed", path=scope["path"], exc_info=error)
    return plain_error(500, UNEXPECTED)
