"""Nobody waits for much longer than a stated time."""

from __future__ import annotations

from dataclasses import dataclass

from cadenza.policies.markers import hookimpl
from cadenza.policies.views import BoolArray, RequestColumns, StepView


class MaxWait:
    """A request starves once it has waited for `seconds` since it arrived or lost its seat.

    FastServe's promotion by the wall clock (NSDI'26; 3 s there). Starving requests take every
    fourth admission, by arrival. It loses under an overload that lasts: once everybody has waited
    that long, nothing of the profile's order remains but plain order of arrival.
    """

    name = "max-wait"

    @dataclass(frozen=True)
    class Options:
        """`seconds`: the longest ordinary wait."""

        seconds: float = 10.0

        def __post_init__(self) -> None:
            if not self.seconds >= 1e-3:
                raise ValueError("seconds must be at least 0.001 (a millisecond)")

    def __init__(self, options: Options | None = None) -> None:
        self._seconds = (options or self.Options()).seconds

    @hookimpl
    def guard_starvation(self, waiting: RequestColumns, step: StepView) -> BoolArray:
        starving: BoolArray = step.now_s - waiting.waits_since_s >= self._seconds
        return starving
