"""From placed rows to the arrays a runner needs, without a Python loop over decoding rows."""

from __future__ import annotations

import numpy as np

from cadenza.scheduler.columns import where
from cadenza.scheduler.plan import Int32Array, Int64Array, Seated, StepPlan
from cadenza.scheduler.planning import Counts, PlanBuilder
from cadenza.scheduler.table import RequestTable, Rows


def assemble(table: RequestTable, plan: PlanBuilder, rows: Rows, counts: Counts) -> StepPlan:
    """The plan in which each of `rows` computes the next `counts` of its tokens."""
    seats, context = table.seat[rows], table.computed_tokens[rows]
    complete = context + counts == table.num_tokens[rows]
    samples, sample_requests, sample_seats = _samples(table, rows, complete)
    return StepPlan(
        step_id=plan.step_id,
        block_size=table.block_size,
        requests=table.request[rows],
        seats=seats.astype(np.int32),
        num_context=context.astype(np.int32),
        num_new=counts.astype(np.int32),
        num_tokens=int(counts.sum()),
        histories=table.history,
        tables=table.block_table,
        samples=samples,
        sample_requests=sample_requests,
        sample_seats=sample_seats,
        seated=_seated(table, plan.seated) if plan.seated else (),
        copies=plan.copies.freeze(),
    )


def _samples(
    table: RequestTable, rows: Rows, complete: np.ndarray
) -> tuple[Int32Array, Int64Array, Int32Array]:
    """Who draws a token: each choice of each row whose known tokens are all computed after this."""
    samples = where(complete)
    sampled = rows[samples]
    requests, seats = table.request[sampled], table.seat[sampled]
    if table.num_several and (table.choices[sampled] > 1).any():
        cold = [table.cold(row) for row in sampled.tolist()]
        requests = np.array([choice for each in cold for choice in each.choices])
        seats = np.array([seat for each in cold for seat in each.seats])
        samples = samples.repeat(table.choices[sampled])
    return samples.astype(np.int32), requests, seats.astype(np.int32)


def _seated(table: RequestTable, rows: list[int]) -> tuple[Seated, ...]:
    at = np.array(rows)
    columns = (each[at].tolist() for each in (table.seat, table.num_tokens, table.prompt_tokens))
    seated: list[Seated] = []
    for row, first, known, prompt in zip(rows, *columns, strict=True):
        cold, tokens = table.cold(row), table.history[first, :known]
        for seat, request in zip(cold.seats, cold.choices, strict=True):
            seated.append(Seated(seat, request, tokens, prompt))
    return tuple(seated)
