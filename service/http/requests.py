"""/v1/requests: how far a request is, and what the scheduler decided about it.

A request's id cannot be guessed, so whoever has it may look. That of a tenant is shown only to
callers of the same tenant and to the administrator; anybody else is told what is told of ids that
were never given out.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cadenza.service.admin import Admin
from cadenza.service.errors import Forbidden, Unauthenticated, UnknownRequest
from cadenza.service.generator import Generator
from cadenza.service.http.errors import JsonResponse
from cadenza.service.timelines import (
    UNKNOWN,
    ChoiceStatus,
    Record,
    RequestStatus,
    generation_id,
)
from cadenza.service.wishes import read_wishes

# What most of all describes a request whose choices differ, first
_STATES = ("running", "parked", "swapped", "preempted", "waiting", "finished")


def request_routes(generator: Generator, admin: Admin | None) -> list[Route]:
    """The routes. What fails is raised, as `RequestError`."""
    pages = _Pages(generator, admin)
    return [
        Route("/v1/requests/{id}", pages.status),
        Route("/v1/requests/{id}/timeline", pages.timeline),
    ]


class _Pages:
    def __init__(self, generator: Generator, admin: Admin | None) -> None:
        self._generator = generator
        self._admin = admin

    async def status(self, request: Request) -> Response:
        """GET /v1/requests/ID."""
        name, status = self._find(request)
        states = {choice.state for choice in status.choices}
        return JsonResponse(
            {
                "id": name,
                "object": "request",
                "created": status.subject.created,
                "model": status.subject.model,
                "state": next(state for state in _STATES if state in states),
                "prompt_tokens": status.subject.prompt_tokens,
                "cached_tokens": status.cached_tokens,
                "choices": [_choice(*numbered) for numbered in enumerate(status.choices)],
            }
        )

    async def timeline(self, request: Request) -> Response:
        """GET /v1/requests/ID/timeline, oldest decision first."""
        name, status = self._find(request)
        timeline = self._generator.timeline(name)
        assert timeline is not None, "nothing is forgotten between two lines"
        began_s = status.subject.began_s
        return JsonResponse(
            {
                "id": name,
                "object": "request.timeline",
                "created": status.subject.created,
                "records": [_record(record, began_s) for record in timeline.records],
                "dropped": timeline.num_dropped,
            }
        )

    def _find(self, request: Request) -> tuple[str, RequestStatus]:
        name = generation_id(request.path_params["id"])
        status = self._generator.status(name)
        if status is None or not self._may_see(request, status.subject.tenant):
            raise UnknownRequest(UNKNOWN)
        return name, status

    def _may_see(self, request: Request, tenant: str) -> bool:
        if not tenant or read_wishes(request.headers.items()).get("tenant") == tenant:
            return True
        if self._admin is None:
            return False
        try:
            self._admin.access.check(request.headers.items())
        except (Unauthenticated, Forbidden):
            return False
        return True


def _choice(index: int, choice: ChoiceStatus) -> dict[str, Any]:
    return {
        "index": index,
        "state": choice.state,
        "reason": choice.reason,
        "generated_tokens": choice.generated_tokens,
        "preemptions": choice.preemptions,
    }


def _record(record: Record, began_s: float) -> dict[str, Any]:
    return {
        "choice": record.choice,
        "kind": record.kind,
        "step_id": record.step_id,
        "time_s": round(record.time_s - began_s, 6),
        "facts": record.facts,
    }
