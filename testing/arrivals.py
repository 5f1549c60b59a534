"""Views of the front process made by hand, as gates and whoever sheds load are given them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from cadenza.policies.arrivals import Arrival, ArrivalColumns, ServiceView, table_of
from cadenza.policies.errors import unknown
from cadenza.testing.tables import refuse_unknown

NOW_S = 1_000.0  # so that requests may have arrived before

_PLAIN = Arrival(
    arrival_s=NOW_S,
    choices=1,
    prompt_tokens=10,
    max_tokens=100,
    priority=0,
    tenant=0,
    tenant_queued=0,
    deadline_s=math.inf,
    ttft_target_s=math.inf,
    tpot_target_s=math.inf,
)


def arrival_columns(num: int | None = None, **columns: Sequence[Any] | float) -> ArrivalColumns:
    """Requests with these columns; the others are as of requests that have just arrived, at 1000 s.

        arrivals = arrival_columns(prompt_tokens=[10, 2000], tenant=1)

    Args:
        num: how many; None: as many as the longest of the columns has elements.
        columns: by the names of `ArrivalColumns`, each a value for all or one value a request.

    Raises:
        ValueError: there is no such column, or the columns do not have the same length.
    """
    for name in columns:
        if name not in Arrival._fields:
            raise ValueError(unknown("column", name, Arrival._fields))
    lengths = {len(each) for each in columns.values() if isinstance(each, Sequence)}
    if num is not None:
        lengths.add(num)
    if len(lengths) > 1:
        raise ValueError(f"columns must be of one length, and are of {sorted(lengths)}")
    size = lengths.pop() if lengths else 1
    table = table_of([_PLAIN.packed()] * size)
    for name, values in columns.items():
        table[name] = values
    return ArrivalColumns(table)


def random_arrivals(num: int, rng: random.Random, *, now_s: float = NOW_S) -> ArrivalColumns:
    """So many different requests in the order in which they arrived, the last of them just now."""
    waits_s = sorted((10 * rng.random() for _ in range(num - 1)), reverse=True)
    arrivals = [
        Arrival(
            arrival_s=now_s - wait_s,
            choices=rng.choice((1, 1, 1, 4)),
            prompt_tokens=rng.randrange(1, 3_000),
            max_tokens=rng.choice((1, 16, 256, 4_096)),
            priority=rng.choice((-1, 0, 0, 0, 5)),
            tenant=rng.randrange(5),
            tenant_queued=rng.randrange(50),
            deadline_s=now_s + rng.choice((1.0, 100.0, math.inf)),
            ttft_target_s=rng.choice((0.2, 5.0, math.inf)),
            tpot_target_s=rng.choice((0.05, math.inf)),
        )
        for wait_s in [*waits_s, 0.0][:num]
    ]
    return ArrivalColumns(table_of([arrival.packed() for arrival in arrivals]))


def service_view(**fields: Any) -> ServiceView:
    """A service with these fields: otherwise with nothing to do, at 1000 s, and 256 places.

    Raises:
        ValueError: a ServiceView has no such field.
    """
    refuse_unknown(ServiceView, fields)
    total = fields.get("total_blocks", 1_000)
    plain: dict[str, Any] = {
        "step_id": 0,
        "now_s": NOW_S,
        "queued": 0,
        "max_queued": 256,
        "queued_tokens": 0,
        "running": 0,
        "free_blocks": total,
        "total_blocks": total,
        "block_size": 16,
    }
    return ServiceView(**{**plain, **fields})
