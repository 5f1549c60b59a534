"""Views made by hand, as hooks are given them: for tests of a policy without a scheduler."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cadenza.policies.arrivals import ServiceView
from cadenza.policies.cached_blocks import CachedBlocks
from cadenza.policies.errors import unknown
from cadenza.policies.views import PreemptionCosts, RequestColumns, StepView

Values = Sequence[Any] | npt.NDArray[Any] | float | bool

BLOCK_SIZE = 16

_DTYPES = {"IntArray": np.int64, "FloatArray": np.float64, "BoolArray": np.bool_}


def _dtypes() -> dict[str, type[np.generic]]:
    properties = {name: each for name, each in vars(RequestColumns).items() if _is_column(each)}
    return {name: _DTYPES[each.fget.__annotations__["return"]] for name, each in properties.items()}


def _is_column(attribute: object) -> bool:
    return isinstance(attribute, property) and attribute.fget is not None


COLUMNS = _dtypes()  # of RequestColumns, name to type of the elements

# What a column has if nobody says otherwise, as of a request that has just arrived
_PLAIN: dict[str, Any] = {
    "choices": 1,
    "deadline_s": np.inf,
    "ttft_target_s": np.inf,
    "tpot_target_s": np.inf,
    "prompt_tokens": 10,
    "max_tokens": 100,
    "admission": -1,
}


def request_columns(num: int | None = None, **columns: Values) -> RequestColumns:
    """Requests with these columns; the others are as of requests that have just arrived.

        waiting = request_columns(prompt_tokens=[10, 2000], tenant=1)

    Requests arrive in the order in which they are given, numbered from 0, with 10 prompt tokens,
    100 `max_tokens`, no targets, no tenant, and nothing computed. What follows from other columns
    (`num_tokens`, `waits_since_s`, `last_run_s`, `remaining_prefill`) need not be given.

    Args:
        num: how many; None: as many as the longest of the columns has elements.
        columns: by the names of `RequestColumns`, each a value for all or one value a request.

    Raises:
        ValueError: there is no such column, the columns do not have the same length, or they
            contradict each other.
    """
    filled = table_columns(num, **columns)
    return RequestColumns(filled, np.arange(len(filled["request"])))


def table_columns(num: int | None = None, **columns: Values) -> dict[str, npt.NDArray[Any]]:
    """The columns of `request_columns`, for several views of some requests each."""
    size = _size(num, columns)
    given = {name: _column(name, values, size) for name, values in columns.items()}
    filled: dict[str, npt.NDArray[Any]] = {
        name: np.full(size, _PLAIN.get(name, 0), dtype) for name, dtype in COLUMNS.items()
    }
    filled |= {"arrival": np.arange(size), "request": np.arange(size)} | given
    filled["num_tokens"] = given.get(
        "num_tokens", filled["prompt_tokens"] + filled["generated_tokens"]
    )
    for name in ("waits_since_s", "last_run_s"):
        filled[name] = given.get(name, filled["arrival_s"])
    # `remaining_prefill` is no column of the table: it follows from what a copy on the host has
    wanted = given.get("remaining_prefill")
    known = filled["computed_tokens"] + filled["cached_tokens"]
    filled["host_tokens"] = known if wanted is None else filled["num_tokens"] - wanted
    view = RequestColumns(filled, np.arange(size))
    if wanted is not None and not np.array_equal(view.remaining_prefill, wanted):
        raise ValueError(
            f"remaining_prefill {wanted.tolist()} contradicts num_tokens, computed_tokens and "
            f"cached_tokens, which leave {view.remaining_prefill.tolist()}"
        )
    return filled


def running_columns(num: int | None = None, **columns: Values) -> RequestColumns:
    """The same for requests with a seat: whole prompts computed, admitted in the order given."""
    size = _size(num, columns)
    view = request_columns(size, **columns)
    computed = np.maximum(view.num_tokens - 1, 0)
    seated: dict[str, Values] = {
        "computed_tokens": computed,
        "blocks_held": -(-np.maximum(computed, 1) // BLOCK_SIZE),
        "blocks_alone": columns.get("blocks_held", -(-np.maximum(computed, 1) // BLOCK_SIZE)),
        "admission": np.arange(size),
    }
    return request_columns(size, **{**seated, **columns})


def cached_blocks(num: int | None = None, **columns: Values) -> CachedBlocks:
    """So many blocks, or as many as the longest column has elements, the oldest first.

    Numbered from 0, published in the order of their numbers, and continued by nothing, unless
    `block`, `last_use`, `published` or `continued` say otherwise.

    Raises:
        ValueError: there is no such column, or the columns do not have the same length.
    """
    size = _size(num, columns)
    places = np.arange(size)
    filled: dict[str, Any] = {"block": places, "last_use": places, "published": places + 1}
    filled["continued"] = np.zeros(size, dtype=bool)
    for name, values in columns.items():
        if name not in filled:
            raise ValueError(unknown("column", name, filled))
        filled[name] = np.broadcast_to(np.asarray(values, filled[name].dtype), (size,)).copy()
    return CachedBlocks(filled, places)


def refuse_unknown(view: type[StepView] | type[ServiceView], fields: Iterable[str]) -> None:
    """Raises ValueError for the first that is no field of `view`."""
    known = view.__dataclass_fields__
    for name in fields:
        if name not in known:
            raise ValueError(unknown(f"field of {view.__name__}", name, known, "they"))


def step_view(**fields: Any) -> StepView:
    """A step with these fields: otherwise the first one, at 0 s, in an empty pool of 1,000 blocks.

    Raises:
        ValueError: a StepView has no such field.
    """
    refuse_unknown(StepView, fields)
    total = fields.get("total_blocks", 1_000)
    plain: dict[str, Any] = {
        "step_id": 0,
        "now_s": 0.0,
        "free_blocks": total,
        "total_blocks": total,
        "block_size": BLOCK_SIZE,
        "free_seats": 8,
        "token_budget": 2_048,
        "free_host_blocks": 0,
        "preemptions": 0,
    }
    return StepView(**{**plain, **fields})


def preemption_costs(victims: RequestColumns, free_host_blocks: int = 0) -> PreemptionCosts:
    """What these victims' ways back would cost at 0.1 ms a token and 0.2 ms a block."""
    blocks = victims.blocks_held
    return PreemptionCosts(
        recompute_tokens=victims.computed_tokens,
        recompute_s=victims.computed_tokens.astype(np.float64) * 1e-4,
        swap_blocks=blocks,
        swap_s=np.where(free_host_blocks > 0, blocks * 2e-4, np.inf),
        free_host_blocks=free_host_blocks,
    )


def random_requests(
    num: int, rng: random.Random, *, now_s: float = 1_000.0, first: int = 0, running: bool = False
) -> RequestColumns:
    """So many different requests, as they might wait or run at `now_s`.

    Tenants, priorities, lengths, targets, predictions and prefixes differ; their numbers are
    `first` and those after it. Of those that wait some have run before, and lost their seats.
    """

    def each(draw: Callable[[], Any]) -> list[Any]:
        return [draw() for _ in range(num)]

    prompts = each(lambda: rng.randrange(1, 3_000))
    limits = each(lambda: rng.choice((1, 16, 256, 4_096)))
    begun = each(lambda: running or rng.random() < 0.2)
    generated = [
        rng.randrange(limit) if run else 0 for run, limit in zip(begun, limits, strict=True)
    ]
    arrived = sorted(now_s - 60 * rng.random() for _ in range(num))
    columns: dict[str, Values] = {
        "request": np.arange(first, first + num),
        "arrival": np.arange(first, first + num),
        "arrival_s": arrived,
        "last_run_s": [now_s if run else at for run, at in zip(begun, arrived, strict=True)],
        "priority": each(lambda: rng.choice((-1, 0, 0, 0, 5))),
        "tenant": each(lambda: rng.randrange(5)),
        "ttft_target_s": each(lambda: rng.choice((0.2, 5.0, np.inf))),
        "tpot_target_s": each(lambda: rng.choice((0.05, np.inf))),
        "deadline_s": each(lambda: now_s + rng.choice((1.0, 100.0, np.inf))),
        "prompt_tokens": prompts,
        "max_tokens": limits,
        "generated_tokens": generated,
        "predicted_tokens": [rng.choice((0, limit)) for limit in limits],
        "admission": [first + rank if run else -1 for rank, run in enumerate(begun)],
        "preemptions": [
            int(run and (not running or rank % 4 == 0)) for rank, run in enumerate(begun)
        ],
    }
    if running:
        return running_columns(num, **columns, parked=each(lambda: rng.random() < 0.1))
    cached = [rng.randrange(0, prompt, BLOCK_SIZE) for prompt in prompts]
    keys = each(lambda: rng.choice((0, 7, rng.randrange(1, 1 << 60))))
    overtakes = each(lambda: rng.choice((0, 3, 70)))
    return request_columns(
        num, **columns, cached_tokens=cached, next_block_key=keys, overtakes=overtakes
    )


def _size(num: int | None, columns: dict[str, Values]) -> int:
    lengths = {name: np.size(each) for name, each in columns.items() if np.ndim(each)}
    size = max(lengths.values(), default=1) if num is None else num
    for name, length in lengths.items():
        if length != size:
            raise ValueError(f"{name} has {length} elements, and there are {size} requests")
    return size


def _column(name: str, values: Values, size: int) -> npt.NDArray[Any]:
    if name not in COLUMNS:
        raise ValueError(unknown("column", name, COLUMNS))
    column = np.asarray(values)
    dtype = COLUMNS[name]
    if np.size(column) and not np.can_cast(column.dtype, dtype, casting="same_kind"):
        raise ValueError(f"{name} must be {np.dtype(dtype)}, and is {column.dtype}")
    return np.broadcast_to(column.astype(dtype), (size,)).copy()
