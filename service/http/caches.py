"""/reset_prefix_cache, as vLLM calls it, and /flush_cache, as SGLang does: the administrator's."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cadenza.service.admin import Admin
from cadenza.service.engine_questions import in_time
from cadenza.service.generator import Generator
from cadenza.service.http.errors import JsonResponse


def cache_routes(generator: Generator, admin: Admin) -> list[Route]:
    """The routes. What fails is raised, as `RequestError`."""
    caches = _Caches(generator, admin)
    # Only POST, though SGLang takes GET too: a page's images would fetch that, without an origin
    return [
        Route(path, caches.reset, methods=["POST"])
        for path in ("/reset_prefix_cache", "/flush_cache")
    ]


class _Caches:
    def __init__(self, generator: Generator, admin: Admin) -> None:
        self._engine = generator.engine
        self._access = admin.access

    async def reset(self, request: Request) -> Response:
        """Forget every cached prefix; requests that run keep their blocks, and go on."""
        self._access.check(request.headers.items())
        await in_time(self._engine.reset_prefix_cache())
        return JsonResponse({"status": "ok"})
