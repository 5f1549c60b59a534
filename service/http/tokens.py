"""/tokenize and /detokenize, with vLLM's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cadenza.service import fields
from cadenza.service.errors import InvalidRequest
from cadenza.service.generator import Generator
from cadenza.service.http.body import read_json
from cadenza.service.http.chat import Chat
from cadenza.service.http.completions import Completions
from cadenza.service.http.errors import JsonResponse
from cadenza.service.request import GenerationRequest


def token_routes(generator: Generator) -> list[Route]:
    """The routes. What fails is raised, as `RequestError`."""
    tokens = _Tokens(generator)
    return [
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
    ]


class _Tokens:
    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._chat, self._completions = Chat(), Completions()

    async def tokenize(self, request: Request) -> Response:
        """The ids that a prompt or a chat becomes before the model reads it."""
        body = await read_json(request.scope, request.receive)
        wants_names = body.get("return_token_strs") is not None and fields.flag(
            body["return_token_strs"], "return_token_strs"
        )
        ids = await self._generator.encode(self._parse(body))
        limits = self._generator.engine.limits
        return JsonResponse(
            {
                "count": len(ids),
                "max_model_len": limits.max_model_len if limits else None,
                "tokens": ids,
                "token_strs": await self._generator.token_names(ids) if wants_names else None,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        """The text of ids, control tokens included."""
        body = await read_json(request.scope, request.receive)
        if body.get("tokens") is None:
            raise InvalidRequest("tokens is missing.", "tokens")
        text = await self._generator.decode(body.get("model"), body["tokens"])
        return JsonResponse({"prompt": text})

    def _parse(self, body: Mapping[str, Any]) -> GenerationRequest:
        """As the endpoints for generation do, so that every field of theirs means the same here."""
        prompt, messages = body.get("prompt"), body.get("messages")
        if (prompt is None) == (messages is None):
            raise InvalidRequest("Exactly one of prompt and messages must be given.", "prompt")
        if messages is not None:
            return self._chat.parse(body).requests[0]
        fields.string(prompt, "prompt")
        return self._completions.parse(body).requests[0]
