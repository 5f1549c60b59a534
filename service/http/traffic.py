"""HTTP answers counted by route, method and status. Nothing that a client makes up is a label."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from starlette.routing import Route
from starlette.types import Scope

from cadenza.service.metrics import REQUEST_S, Histogram

# That clients have open, by protocol; None: nobody knows. It is called in a thread.
NumConnections = Callable[[], Mapping[str, int | None]]

OTHER = "other"
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
_LEFT = "gone"  # in place of a status: the client left, or did not read


class Answered(NamedTuple):
    """What one answer is counted under."""

    route: str  # as it is declared, such as /v1/models/{model:path}; OTHER: none fits
    method: str  # OTHER: none of the usual ones
    status: str  # three digits, or "gone"


class Traffic:
    """Totals since the application was built."""

    def __init__(self) -> None:
        self.answers: defaultdict[Answered, int] = defaultdict(int)
        self.durations: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(REQUEST_S))

    def count(self, scope: Scope, status: int | None, duration_s: float) -> None:
        """An answer has ended; `status` None: the client was gone before it had one."""
        route = scope.get("route")
        path = route.path if isinstance(route, Route) else OTHER
        method = scope["method"] if scope["method"] in _METHODS else OTHER
        self.answers[Answered(path, method, _LEFT if status is None else str(status))] += 1
        self.durations[path].observe(duration_s)
