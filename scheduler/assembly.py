"""From placed rows to the arrays a runner needs, without a Python loop over decoding rows."""

from __future__ import annotations

import numpy as np

from cadenza.scheduler.columns import where
from cadenza.scheduler.plan import Int64Array, Seated, StepPlan
from cadenza.scheduler.planning import PlanBuilder
from cadenza.scheduler.prefills import Counts
from cadenza.scheduler.table import RequestTable, Rows


def assemble(table: RequestTable, plan: PlanBuilder, rows: Rows, counts: Counts) -> StepPlan:
    """The plan in which each of `rows` computes the next `counts` of its tokens."""
    seats, context = table.seat[rows], table.computed_tokens[rows]
    complete = context + counts == table.num_tokens[rows]
    requests = table.request[rows]
    samples = where(complete)
    sample_requests, sample_seats = requests[samples], seats[samples]
    if table.num_several and (table.choices[rows[samples]] > 1).any():
        samples, sample_requests, sample_seats = _of_each_choice(table, rows, samples)
    return StepPlan(
        step_id=plan.step_id,
        block_size=table.block_size,
        requests=requests,
        seats=seats.astype(np.int32),
        num_context=context.astype(np.int32),
        num_new=counts.astype(np.int32),
        num_tokens=int(counts.sum()),
        histories=table.history,
        tables=table.block_table,
        samples=samples.astype(np.int32),
        sample_requests=sample_requests,
        sample_seats=sample_seats.astype(np.int32),
        seated=_seated(table, plan.seated) if plan.seated else (),
        copies=plan.copies.freeze(),
    )


def _of_each_choice(
    table: RequestTable, rows: Rows, samples: Rows
) -> tuple[Rows, Int64Array, Int64Array]:
    """Each choice of each row whose known tokens are all computed after this draws a token.

    samples: index of each of these rows. Returns one element a choice: that, request and seat.
    """
    sampled = rows[samples]
    cold = [table.cold(row) for row in sampled.tolist()]
    requests = np.array([choice for each in cold for choice in each.choices], dtype=np.int64)
    seats = np.array([seat for each in cold for seat in each.seats], dtype=np.int64)
    return samples.repeat(table.choices[sampled]), requests, seats


def _seated(table: RequestTable, rows: list[int]) -> tuple[Seated, ...]:
    at = np.array(rows)
    columns = (each[at].tolist() for each in (table.seat, table.num_tokens, table.prompt_tokens))
    seated: list[Seated] = []
    for row, first, known, prompt in zip(rows, *columns, strict=True):
        cold, tokens = table.cold(row), table.history[first, :known]
        for seat, request in zip(cold.seats, cold.choices, strict=True):
            seated.append(Seated(seat, request, tokens, prompt))
    return tuple(seated)
