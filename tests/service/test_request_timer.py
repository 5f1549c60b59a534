"""When tokens came, told of many rows at once or of each alone."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cadenza.service.metrics import Metrics
from cadenza.service.request_timer import JointTimes, RequestTimer, TokenTimes

TENANTS = ("", "a", "b")
# Seconds that passed before each token, and whether the rows are told then
STEPS = st.lists(st.tuples(st.sampled_from([0.0, 0.01, 0.3]), st.booleans()))


def rows_of(metrics: Metrics) -> list[TokenTimes]:
    """Those of some tenants' requests, each with a token that came at 1."""
    rows = []
    for row in range(5):
        timer = RequestTimer(metrics, clock=lambda: 0.0)
        timer.launched(tenant=TENANTS[row % 3], prompt_tokens=1, n=1, max_tokens=9)
        rows.append(timer.choice())
        rows[-1].token(1.0)
    return rows


def measured(metrics: Metrics) -> dict[str, Any]:
    gaps = metrics.inter_token_latency
    tokens = {name: each.generation_tokens for name, each in metrics.tenants.items()}
    return {"gaps": gaps.cumulative(), "sum": round(gaps.sum, 9), "tokens": tokens}


@given(STEPS)
def test_tokens_that_come_together_are_timed_as_one_after_another(steps):
    ours, theirs = Metrics(["a"]), Metrics(["a"])
    together, alone = rows_of(ours), rows_of(theirs)
    joint, now_s = JointTimes(together, 1.0), 1.0
    for passed_s, settles in [*steps, (0.01, True)]:
        now_s += passed_s
        joint.token(now_s)
        for row in alone:
            row.token(now_s)
        assert measured(ours) == measured(theirs)
        if settles:
            joint.settle()
            for row, other in zip(together, alone, strict=True):
                assert (row.count, row.first_s, row.last_s) == (
                    other.count,
                    other.first_s,
                    other.last_s,
                )
