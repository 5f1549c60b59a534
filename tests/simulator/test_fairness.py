"""Service by tenant, compared only where somebody of each waits."""

from __future__ import annotations

import numpy as np
import pytest

from cadenza.policies.profile import Profile
from cadenza.simulator.fairness import fairness
from cadenza.simulator.summary import Targets, meets, summary
from cadenza.simulator.trace import Trace, TraceRequest
from tests.simulator.traces import run_of, trace_of


def flood() -> Trace:
    """A tenant that sends forty at once, and one that sends a few after it."""
    many = [TraceRequest(0.0, 8, 50, tenant="many") for _ in range(40)]
    few = [TraceRequest(0.1, 8, 50, tenant="few") for _ in range(12)]
    return trace_of(*many, *few)


def test_fair_share_is_fairer_and_arrival_order_is_not():
    fcfs = run_of(flood(), max_num_seqs=4)
    fair = run_of(flood(), Profile({"order_admissions": "fair-share"}), max_num_seqs=4)
    indices = [fairness(run, meets(run, Targets()))["jain"] for run in (fcfs, fair)]

    assert indices[0] == pytest.approx(0.5, abs=0.05)  # one of two gets all
    assert indices[1] > 0.9


def test_without_a_queue_there_is_nothing_to_compare():
    trace = trace_of(*(TraceRequest(float(time), 8, 3, tenant=f"t{time % 2}") for time in range(6)))
    told = fairness(run_of(trace), np.ones(6, dtype=bool))

    assert told["jain"] is None
    assert [each["requests"] for each in told["tenants"]] == [3, 3]
    assert told["tenants"][0]["service"] == 3 * (8 + 2 * 3)


def test_goodput_goes_by_targets_of_the_request_or_else_ours():
    trace = trace_of(
        TraceRequest(0.0, 8, 3, ttft_target_s=0.005),
        TraceRequest(1.0, 8, 3, ttft_target_s=0.5),
        TraceRequest(2.0, 8, 3),
        TraceRequest(3.0, 8, 1),
    )
    run = run_of(trace)

    assert meets(run, Targets(ttft_s=1, tpot_s=1)).tolist() == [False, True, True, True]
    assert meets(run, Targets(ttft_s=1, tpot_s=0.001)).tolist() == [False, True, False, True]
    assert summary(run, Targets(ttft_s=1, tpot_s=1))["attainment"] == 0.75


def test_who_waited_longest_and_for_what():
    run = run_of(flood(), max_num_seqs=4)
    first = summary(run, Targets())["longest_waits"][0]

    assert first["lacked"] == "seats"
    assert first["no_seats"] == pytest.approx(1, abs=0.02)
    assert first["ahead"] > 40
    assert first["overtaken_by"] == 0


def test_blocks_can_be_what_is_missing():
    """Two of them hold nearly all from their first step to the last."""
    requests = [TraceRequest(0.0, 60, 4, max_tokens=4) for _ in range(8)]
    run = run_of(trace_of(*requests), num_blocks=33, max_num_seqs=8)

    first = summary(run, Targets())["longest_waits"][0]
    assert first["lacked"] == "blocks"
    assert first["no_blocks"] > 0.7
