"""Every answer held against openai-python's own models, which themselves take anything.

openai-python builds its objects without validation, so that a wrong answer would go unnoticed.
Only the standard library and what the client brings along are imported: this runs in its venv.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import httpx2
import pydantic
from openai.types import Completion, CompletionChoice, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.shared import ErrorObject

# What vLLM's clients know beyond OpenAI's fields, and we tell as well
FURTHER = {"stop_reason", "max_model_len", "root", "parent", "permission"}


class ChoicePart(CompletionChoice):
    """A chunk's choice: as OpenAI's service, we say null until it ends, which their type lacks."""

    finish_reason: Literal["stop", "length", "content_filter"] | None  # type: ignore[assignment]


class CompletionPart(Completion):
    """A chunk of a completion."""

    choices: list[ChoicePart]  # type: ignore[assignment]


WHOLE = {"/v1/chat/completions": ChatCompletion, "/v1/completions": Completion}
PARTS = {"/v1/chat/completions": ChatCompletionChunk, "/v1/completions": CompletionPart}


def validated_client() -> httpx2.Client:
    """An HTTP client that raises AssertionError for a response that is not as the models say."""
    return httpx2.Client(timeout=60, event_hooks={"response": [_validate]})


def _validate(response: httpx2.Response) -> None:
    response.read()
    path = response.request.url.path
    kind = response.headers["content-type"]
    if response.status_code != 200:
        assert kind == "application/json", kind
        _hold(response.json()["error"], ErrorObject)
    elif kind.startswith("text/event-stream"):
        *events, done = _events(response.text)
        assert done == "[DONE]", done
        for event in events:
            _hold(json.loads(event), PARTS[path])
    elif path == "/v1/models":
        for each in response.json()["data"]:
            _hold(each, Model)
    elif path in WHOLE:
        _hold(response.json(), WHOLE[path])


def _events(text: str) -> list[str]:
    assert text.endswith("\n\n"), text[-80:]
    events = text.removesuffix("\n\n").split("\n\n")
    assert all(event.startswith("data: ") for event in events), text[:80]
    return [event.removeprefix("data: ") for event in events]


def _hold(told: Any, model: type[pydantic.BaseModel]) -> None:
    read = model.model_validate_json(json.dumps(told), strict=True)
    assert _unknown(read) <= FURTHER, f"{model.__name__} has {_unknown(read) - FURTHER}: {told}"


def _unknown(value: Any) -> set[str]:
    """The names of fields that no model knows, at any depth."""
    if isinstance(value, list):
        return {name for each in value for name in _unknown(each)}
    if not isinstance(value, pydantic.BaseModel):
        return set()
    inner = {name for field in type(value).model_fields for name in _unknown(getattr(value, field))}
    return inner | {*(value.model_extra or ())}
