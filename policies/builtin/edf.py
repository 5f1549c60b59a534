"""The earliest due first."""

from __future__ import annotations

from cadenza.policies.deadlines import due_s, feasible_first, prefill_s
from cadenza.policies.markers import hookimpl
from cadenza.policies.views import FloatArray, RequestColumns, StepView


class Edf:
    """Earliest deadline first: `score` is when the request's next token is due.

        due = arrival + ttft_target + generated * tpot_target, at most the deadline

    Requests that can meet it no more, since what is left to prefill takes longer all alone, come
    behind those that can, and so do requests without targets, all by arrival. Without that rule
    (relegation, as in Niyama, arXiv 2503.22562) an overload makes everybody late in turn: each late
    request delays one that was still in time. The time to prefill is the measured cost of a token;
    until one was measured only who is late already is relegated.

    Earliest deadline first meets all deadlines if any order does (Liu and Layland, 1973), on one
    machine that can switch at will. It loses where it cannot: a long prefill that is due first
    delays many short ones; `least-laxity` looks at lengths, too. Requests without targets wait
    until a guard helps them.
    """

    name = "edf"

    @hookimpl
    def order_admissions(self, waiting: RequestColumns, step: StepView) -> FloatArray:
        due = due_s(waiting)
        can = (due < float("inf")) & (step.now_s + prefill_s(waiting, step) <= due)
        return feasible_first(due, can, waiting)
