"""The pages that only look: models, health, version, load, metrics."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cadenza.service.generator import Generator
from cadenza.service.http.errors import JsonResponse
from cadenza.service.http.metrics import Exporter


def pages(generator: Generator, exporter: Exporter, version: str) -> list[Route]:
    """The routes. What fails is raised, as `RequestError`."""
    look = _Pages(generator, exporter, version)
    return [
        Route("/v1/models", look.models),
        Route("/v1/models/{model:path}", look.model),
        Route("/health", look.health),
        Route("/ping", look.health, methods=["GET", "POST"]),
        Route("/ready", look.ready),
        Route("/version", look.version),
        Route("/load", look.load),
        Route("/metrics", look.metrics),
    ]


class _Pages:
    def __init__(self, generator: Generator, exporter: Exporter, version: str) -> None:
        self._generator = generator
        self._exporter = exporter
        self._version = version

    async def models(self, request: Request) -> Response:
        data = [self._model(name) for name in self._generator.model_names]
        return JsonResponse({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        self._generator.check_model(name)
        return JsonResponse(self._model(name))

    async def health(self, request: Request) -> Response:
        """Liveness: the engine may load, or be replaced while requests wait, but is not given up.

        One that hangs is ended by this very process, which answers as long as it does that.
        """
        is_alive = self._generator.engine.failure is None
        return Response(status_code=200 if is_alive else 503)

    async def ready(self, request: Request) -> Response:
        """Readiness: a request sent now is served now."""
        return Response(status_code=200 if self._generator.is_ready else 503)

    async def version(self, request: Request) -> Response:
        return JsonResponse({"version": self._version})

    async def load(self, request: Request) -> Response:
        """Requests whose answers have not been delivered, over HTTP and gRPC, queued ones too."""
        return JsonResponse({"server_load": self._generator.num_in_flight})

    async def metrics(self, request: Request) -> Response:
        return Response(await self._exporter.render(), media_type=self._exporter.content_type)

    def _model(self, name: str) -> dict[str, Any]:
        limits = self._generator.engine.limits
        return {
            "id": name,
            "object": "model",
            "created": self._generator.created,
            "owned_by": "cadenza",
            "root": self._generator.model_name,
            "parent": None,
            "max_model_len": limits.max_model_len if limits else None,
            "permission": [],
        }
