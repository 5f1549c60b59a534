"""/v1/policies: the policies of the running service, for its administrator.

Every route answers with the report that holds after it.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cadenza.service.admin import Admin
from cadenza.service.http.body import read_json
from cadenza.service.http.errors import JsonResponse
from cadenza.service.policy_control import MAX_PROFILE_BYTES


def policy_routes(admin: Admin) -> list[Route]:
    """The routes. What fails is raised, as `RequestError`."""
    pages = _Pages(admin)
    return [
        Route("/v1/policies", pages.describe),
        Route("/v1/policies/profile", pages.use, methods=["PUT"]),
        Route("/v1/policies/shadow", pages.shadow, methods=["PUT", "DELETE"]),
        Route("/v1/policies/{policy}/release", pages.release, methods=["POST"]),
    ]


class _Pages:
    def __init__(self, admin: Admin) -> None:
        self._policies, self._access = admin.policies, admin.access

    async def describe(self, request: Request) -> Response:
        """GET /v1/policies."""
        self._check(request)
        return await self._report()

    async def use(self, request: Request) -> Response:
        """PUT /v1/policies/profile, with `preset`, `decisions` and `options`."""
        self._check(request)
        await self._policies.use(await _profile(request))
        return await self._report()

    async def shadow(self, request: Request) -> Response:
        """PUT /v1/policies/shadow, with the same; DELETE takes it away."""
        self._check(request)
        await self._policies.shadow(None if request.method == "DELETE" else await _profile(request))
        return await self._report()

    async def release(self, request: Request) -> Response:
        """POST /v1/policies/NAME/release."""
        self._check(request)
        await self._policies.release(request.path_params["policy"])
        return await self._report()

    def _check(self, request: Request) -> None:
        """Before the body is read."""
        self._access.check(request.headers.items())

    async def _report(self) -> Response:
        return JsonResponse(await self._policies.describe())


async def _profile(request: Request) -> dict[str, Any]:
    return await read_json(request.scope, request.receive, MAX_PROFILE_BYTES)
