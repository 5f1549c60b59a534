"""One client of the service over four transports: requests and answers have one form in all.

Fields have the names of `/v1/completions`, or `messages` in place of `prompt`. `tenant`,
`ttft_target_s` and `tpot_target_s` are gRPC's names of what HTTP says in headers; `timeout_s` is
another header, the deadline of a call, or a field of a session's submit. Log-probabilities
are those that a completion tells: the best by their texts.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import grpc
import httpx
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from cadenza.service.errors import STATUSES
from cadenza.service.http.logprobs import floor
from cadenza.v1 import generation_pb2 as pb
from cadenza.v1.generation_pb2_grpc import GenerationServiceStub
from tests.grpc_input import to_input

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HEADERS = {
    "tenant": ("x-gateway-inference-fairness-id", str),
    "ttft_target_s": ("x-slo-ttft-ms", lambda seconds: f"{seconds * 1000:.6f}"),
    "tpot_target_s": ("x-slo-tpot-ms", lambda seconds: f"{seconds * 1000:.6f}"),
    "timeout_s": ("x-request-timeout-ms", lambda seconds: f"{seconds * 1000:.6f}"),
}


@dataclass(frozen=True)
class Scored:
    """A token's text, its log-probability, and the best ones at its place, itself among them."""

    text: str
    logprob: float | None
    best: Mapping[str, float]


@dataclass
class Choice:
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    reason: str | None = None  # None: it has not ended
    stop_reason: str | int | None = None
    logprobs: list[Scored] = field(default_factory=list)


@dataclass(frozen=True)
class Failure:
    code: str  # of gRPC
    message: str
    field: str | None
    retry_after_s: float | None = None  # None: there is no use, or an event cannot say it


@dataclass
class Told:
    """All that a client learns of one request."""

    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, int] | None = None
    prompt_logprobs: Any = None  # by token id: log-probability and rank
    failure: Failure | None = None

    @property
    def texts(self) -> list[str]:
        return [self.choices[index].text for index in sorted(self.choices)]

    def choice(self, index: int) -> Choice:
        return self.choices.setdefault(index, Choice())


class Transport(Protocol):
    """**Protocol:** a way to the service. To cancel `ask` is to give the request up."""

    name: str
    tells_parts: bool  # of an answer that fails, what came before

    async def ask(self, fields: Mapping[str, Any]) -> Told:
        """All of a request. Raises `Unsayable` where its form has no room for a value."""
        ...


# HTTP


def body_of(fields: Mapping[str, Any]) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Path, body and headers."""
    body = {name: value for name, value in fields.items() if name not in HEADERS}
    headers = {
        header: text(fields[name]) for name, (header, text) in HEADERS.items() if name in fields
    }
    if "messages" not in body:
        return COMPLETIONS, body, headers
    if body.get("logprobs") is not None:
        body["top_logprobs"], body["logprobs"] = body["logprobs"], True
    return CHAT, body, headers


class Whole:
    """An HTTP answer that is not streamed."""

    name = "json"
    tells_parts = False

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def ask(self, fields: Mapping[str, Any]) -> Told:
        path, body, headers = body_of(fields)
        body = {"return_token_ids": True, **body}
        response = await self._http.post(path, json=body, headers=headers)
        if response.status_code != 200:
            return Told(failure=http_failure(response.json(), path, response))
        return read_whole(response.json())


class Events:
    """An HTTP answer as server-sent events."""

    name = "sse"
    tells_parts = True

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def ask(self, fields: Mapping[str, Any]) -> Told:
        path, body, headers = body_of(fields)
        body = {"return_token_ids": True, "stream": True, **body}
        body["stream_options"] = {"include_usage": True}
        response = await self._http.post(path, json=body, headers=headers)
        if response.status_code != 200:
            return Told(failure=http_failure(response.json(), path, response))
        return read_events(response.text, path)


def read_events(text: str, path: str) -> Told:
    told = Told()
    *blocks, nothing = text.split("\n\n")
    assert nothing == ""
    data = [block.removeprefix("data: ") for block in blocks]
    is_whole = data[-1] == "[DONE]"
    for chunk in map(json.loads, data[:-1] if is_whole else data):
        assert told.failure is None, "something follows an error"
        if "error" in chunk:
            told.failure = http_failure(chunk, path)
        for part in chunk.get("choices", ()):
            _add_part(told.choice(part["index"]), part)
        told.usage = _usage(chunk.get("usage")) or told.usage
    assert is_whole is (told.failure is None)
    return told


def _add_part(choice: Choice, part: Mapping[str, Any]) -> None:
    choice.text += part["text"] if "text" in part else part["delta"].get("content", "")
    choice.token_ids += part.get("token_ids", ())
    choice.logprobs += _scored(part["logprobs"])
    if part["finish_reason"]:
        choice.reason, choice.stop_reason = part["finish_reason"], part["stop_reason"]


def read_whole(answer: Mapping[str, Any]) -> Told:
    told = Told(usage=_usage(answer["usage"]))
    told.prompt_logprobs = _by_id(answer.get("prompt_logprobs"))
    for part in answer["choices"]:
        choice = told.choice(part["index"])
        choice.text = part["text"] if "text" in part else part["message"]["content"]
        choice.token_ids = part["token_ids"]
        choice.reason, choice.stop_reason = part["finish_reason"], part["stop_reason"]
        choice.logprobs = _scored(part["logprobs"])
        if "prompt_logprobs" in part:
            told.prompt_logprobs = _by_id(part["prompt_logprobs"])
    return told


def _usage(usage: Mapping[str, Any] | None) -> dict[str, int] | None:
    if usage is None:
        return None
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "cached_tokens": cached,
    }


def _scored(logprobs: Mapping[str, Any] | None) -> list[Scored]:
    if logprobs is None:
        return []
    if "content" in logprobs:
        return [
            _best(each["token"], each["logprob"], [(t["token"], t["logprob"]) for t in best])
            for each in logprobs["content"]
            for best in (each["top_logprobs"],)
        ]
    columns = (logprobs[name] for name in ("tokens", "token_logprobs", "top_logprobs"))
    return [Scored(text, logprob, best or {}) for text, logprob, best in zip(*columns, strict=True)]


def _best(
    text: str, logprob: float | None, candidates: Iterable[tuple[str, float | None]]
) -> Scored:
    """As a completion tells it: of tokens with the same text the best one, then the one drawn."""
    if logprob is None:
        return Scored(text, None, {})
    best: dict[str, Any] = {}
    for candidate, its_logprob in candidates:
        best.setdefault(candidate, its_logprob)
    best.setdefault(text, logprob)
    return Scored(text, logprob, best)


def _by_id(scored: Any) -> Any:
    if scored is None:
        return None
    return [
        each
        and {
            int(token): (told["logprob"], told["rank"], told["decoded_token"])
            for token, told in each.items()
        }
        for each in scored
    ]


def http_failure(body: Any, path: str, response: httpx.Response | None = None) -> Failure:
    error = body["error"]
    if (error["type"], error["code"]) == ("server_error", None):
        return Failure("INTERNAL", error["message"], error["param"])
    [code] = {
        status.grpc
        for status in STATUSES.values()
        if (status.type, status.code) == (error["type"], error["code"])
        and (response is None or status.http == response.status_code)
    }
    field, message = error["param"], error["message"]
    if path == CHAT and field == "top_logprobs":
        field, message = "logprobs", message.replace("top_logprobs", "logprobs")
    after_ms = None if response is None else response.headers.get("retry-after-ms")
    return Failure(code, message, field, None if after_ms is None else int(after_ms) / 1000)


# gRPC


class Generate:
    """gRPC's `Generate`."""

    name = "generate"
    tells_parts = True

    def __init__(self, stub: GenerationServiceStub) -> None:
        self._stub = stub

    async def ask(self, fields: Mapping[str, Any]) -> Told:
        told, (given, timeout_s) = Told(), _timeout(fields)
        request = pb.GenerateRequest(input=to_input(given))
        call = self._stub.Generate(request, timeout=timeout_s)
        try:
            async for response in call:
                for event in response.events:
                    add_event(told, event)
        except grpc.aio.AioRpcError as error:
            told.failure = _status_failure(error)
        return told


class InSession:
    """gRPC's `Session`, a stream for each request."""

    name = "session"
    tells_parts = True

    def __init__(self, stub: GenerationServiceStub) -> None:
        self._stub = stub

    async def ask(self, fields: Mapping[str, Any]) -> Told:
        given, timeout_s = _timeout(fields)
        submit = pb.Submit(request_id="q", input=to_input(given))
        if timeout_s is not None:
            submit.timeout.FromTimedelta(timedelta(seconds=timeout_s))
        stream = self._stub.Session(_only(pb.SessionRequest(submit=submit)))
        told, ended = Told(), False
        async for response in stream:
            for event in response.events:
                assert (event.request_id, ended) == ("q", False)
                add_event(told, event)
                ended = event.WhichOneof("event") in ("finished", "failed")
        assert ended
        return told


def _timeout(fields: Mapping[str, Any]) -> tuple[dict[str, Any], float | None]:
    """The fields without the timeout, and that."""
    given = dict(fields)
    return given, given.pop("timeout_s", None)


async def _only(request: pb.SessionRequest) -> AsyncIterator[pb.SessionRequest]:
    yield request


def add_event(told: Told, event: pb.Event) -> None:
    match event.WhichOneof("event"):
        case "tokens":
            choice = told.choice(event.tokens.choice)
            choice.text += event.tokens.text
            choice.token_ids += event.tokens.token_ids
            choice.logprobs += map(_position, event.tokens.logprobs)
        case "choice_finished":
            ended = event.choice_finished
            choice = told.choice(ended.choice)
            choice.reason = (
                pb.FinishReason.Name(ended.reason).removeprefix("FINISH_REASON_").lower()
            )
            if kind := ended.WhichOneof("stop_reason"):
                choice.stop_reason = getattr(ended, kind)
        case "prompt_logprobs":
            told.prompt_logprobs = told.prompt_logprobs or []
            told.prompt_logprobs += map(_prompt_position, event.prompt_logprobs.logprobs)
        case "finished":
            usage = event.finished.usage
            names = ("prompt_tokens", "completion_tokens", "cached_tokens")
            told.usage = {name: getattr(usage, name) for name in names}
        case "failed":
            failed = event.failed
            after = failed.retry_after.ToTimedelta().total_seconds()
            assert failed.retryable is failed.HasField("retry_after")
            code = {each.value[0]: each.name for each in grpc.StatusCode}[failed.code]
            told.failure = Failure(
                code, failed.message, _field(failed.field), after if failed.retryable else None
            )


def _logprob(token: pb.TokenLogprob) -> float | None:
    return floor(token.logprob) if token.HasField("logprob") else None


def _position(position: pb.PositionLogprobs) -> Scored:
    best = [(token.text, _logprob(token)) for token in position.top]
    return _best(position.sampled.text, _logprob(position.sampled), best)


def _prompt_position(position: pb.PositionLogprobs) -> Any:
    if not position.sampled.HasField("logprob"):
        return None
    return {
        token.token_id: (_logprob(token), token.rank, token.text)
        for token in (*position.top, position.sampled)
    }


def _field(path: str) -> str | None:
    return path.removeprefix("input.").removeprefix("chat.") or None


def _status_failure(error: grpc.aio.AioRpcError) -> Failure:
    path, after_s = "", None
    status = rpc_status.from_call(error)
    for packed in status.details if status else ():
        bad, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if packed.Unpack(bad):
            [violation] = bad.field_violations
            assert violation.description == error.details()
            path = violation.field
        elif packed.Unpack(retry):
            after_s = retry.retry_delay.ToTimedelta().total_seconds()
            pushback = dict(error.trailing_metadata() or ())["grpc-retry-pushback-ms"]
            assert int(pushback) == round(after_s * 1000)
    return Failure(error.code().name, str(error.details()), _field(path), after_s)


@asynccontextmanager
async def connected(http: httpx.AsyncClient, address: str) -> AsyncIterator[list[Transport]]:
    """All four, to one service."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = GenerationServiceStub(channel)
        yield [Whole(http), Events(http), Generate(stub), InSession(stub)]
