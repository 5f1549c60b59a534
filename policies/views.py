"""Read-only views that hooks are given. A hook must not keep them after it returns.

What a hook sees as an array has its memory in a `bytes` object. A mere flag on an array that owns
its memory, or on its base, can be set back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


class Column(Protocol):
    """An array, or what computes the elements that are asked for."""

    @property
    def dtype(self) -> Any: ...

    def take(self, rows: Any, /, *, mode: Literal["clip"]) -> npt.NDArray[Any]:
        """The elements of these rows, none of which is out of bounds: nobody needs to look."""


class Columns:
    """One element a request in every column, all columns in the same order.

    A column is gathered when it is first read, so a policy pays for what it looks at.
    """

    __slots__ = ("_columns", "_gathered", "_rows")

    def __init__(self, columns: Mapping[str, Column], rows: npt.NDArray[np.intp]) -> None:
        self._columns = columns
        self._rows = rows
        self._gathered: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def _gather(self, name: str) -> npt.NDArray[Any]:
        column = self._columns[name]
        memory = self._gathered.get(name)
        if memory is None:
            memory = self._gathered[name] = column.take(self._rows, mode="clip").tobytes()
        # A new array each time, since the shape of one that cannot be written can be set
        return np.frombuffer(memory, column.dtype)

    def _taken(self, name: str) -> npt.NDArray[Any]:
        """A column, or what of it was gathered before; for no policy to see."""
        if name in self._gathered:
            return self._gather(name)
        return self._columns[name].take(self._rows, mode="clip")


class RequestColumns(Columns):
    """Requests as the engine's hooks see them."""

    __slots__ = ()

    @property
    def request(self) -> IntArray:
        """The request's id, unique while the service runs; of several choices the first one's."""
        return self._gather("request")

    @property
    def choices(self) -> IntArray:
        """Outputs that will come of this row; 1 once they are rows of their own, sharing blocks.

        They part when the prompt is complete. Each may generate `max_tokens`.
        """
        return self._gather("choices")

    @property
    def arrival(self) -> IntArray:
        """Rank of arrival: smaller came earlier, no two are equal."""
        return self._gather("arrival")

    @property
    def arrival_s(self) -> FloatArray:
        """Time of arrival, on the clock of `StepView.now_s`."""
        return self._gather("arrival_s")

    @property
    def priority(self) -> IntArray:
        """What the client asked for; a lower number is earlier."""
        return self._gather("priority")

    @property
    def tenant(self) -> IntArray:
        """Whom the request counts for: a small number a tenant; 0: nobody in particular.

        A tenant keeps its number while it has requests, and for long after; in the end it may be
        another's. `StepView.tenants` has the numbers by name.
        """
        return self._gather("tenant")

    @property
    def deadline_s(self) -> FloatArray:
        """When the request is given up, on the clock of `StepView.now_s`; +inf: never."""
        return self._gather("deadline_s")

    @property
    def ttft_target_s(self) -> FloatArray:
        """Seconds from arrival within which the client wants the first token; +inf: no target.

        Nothing enforces it, unlike a deadline.
        """
        return self._gather("ttft_target_s")

    @property
    def tpot_target_s(self) -> FloatArray:
        """Seconds within which the client wants each further token; +inf: no target."""
        return self._gather("tpot_target_s")

    @property
    def waits_since_s(self) -> FloatArray:
        """When the request arrived or last lost its seat, on the clock of `StepView.now_s`."""
        return self._gather("waits_since_s")

    @property
    def last_run_s(self) -> FloatArray:
        """Time of the last step that computed tokens of the request; before that, its arrival."""
        return self._gather("last_run_s")

    @property
    def prompt_tokens(self) -> IntArray:
        """Length of the prompt."""
        return self._gather("prompt_tokens")

    @property
    def num_tokens(self) -> IntArray:
        """Prompt and generated tokens together."""
        return self._gather("num_tokens")

    @property
    def computed_tokens(self) -> IntArray:
        """Tokens whose keys and values are on the device; 0 for a waiting request."""
        return self._gather("computed_tokens")

    @property
    def generated_tokens(self) -> IntArray:
        """Output tokens so far."""
        return self._gather("generated_tokens")

    @property
    def max_tokens(self) -> IntArray:
        """Output tokens at most."""
        return self._gather("max_tokens")

    @property
    def predicted_tokens(self) -> IntArray:
        """Output tokens in all that are expected, at most `max_tokens`; 0: nobody said.

        By whoever sent the request, which no API lets them yet, or by a policy for
        `predict_lengths`.
        """
        return self._gather("predicted_tokens")

    @property
    def remaining_prefill(self) -> IntArray:
        """Tokens to compute before the next one is sampled; 1 of a request that decodes.

        Of a waiting request what neither the prefix cache nor a copy on the host holds, at least 1.
        """
        known = self._taken("computed_tokens") + self._taken("cached_tokens")
        known = np.maximum(known, self._taken("host_tokens"), out=known)
        return _sealed(np.maximum(self._taken("num_tokens") - known, 1))

    @property
    def blocks_held(self) -> IntArray:
        """KV blocks in the request's table, shared ones included."""
        return self._gather("blocks_held")

    @property
    def blocks_alone(self) -> IntArray:
        """KV blocks in the request's table and in no other: what it would free by leaving.

        Counted when it is read, block by block, which takes longer than to look a column up.
        """
        return self._gather("blocks_alone")

    @property
    def admission(self) -> IntArray:
        """Rank of the first admission, kept when the request is preempted; -1 before it.

        Smaller was admitted earlier.
        """
        return self._gather("admission")

    @property
    def resumed(self) -> BoolArray:
        """Whether the policies have not seen all of the request's life.

        It had output before it came, as after a restart of the engine, or it was here already when
        these policies took the place of others; for one that comes back, in its `on_arrived` only.
        """
        return self._gather("resumed")

    @property
    def preemptions(self) -> IntArray:
        """How often the request has been preempted."""
        return self._gather("preemptions")

    @property
    def cached_tokens(self) -> IntArray:
        """Tokens of a waiting request that the prefix cache holds now; 0 for a running one."""
        return self._gather("cached_tokens")

    @property
    def next_block_key(self) -> IntArray:
        """Names the first block that a waiting request would have to compute.

        Requests with equal values would compute the same block: one can, and the others find it.
        0: no whole block is left to find.
        """
        return self._gather("next_block_key")

    @property
    def parked(self) -> BoolArray:
        """Whether the request has a seat but its reader takes no tokens now.

        `reserve_blocks`, `select_victims` and `choose_preemption` see parked requests beside those
        that run. As victims they leave before those, whatever their score.
        """
        return self._gather("parked")

    @property
    def overtakes(self) -> IntArray:
        """Later arrivals that were admitted for the first time ahead of this waiting request.

        Of its own tenant alone, if the order is one that is fair among tenants.
        """
        return self._gather("overtakes")


def _sealed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy that nobody can write to."""
    return np.frombuffer(array.tobytes(), array.dtype)


class Occasion(Protocol):
    """What hooks are asked about: a step of the scheduler, or in the front process an arrival."""

    @property
    def step_id(self) -> int:
        """Tells it from all others."""

    @property
    def now_s(self) -> float:
        """Monotonic seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """The scheduler's situation in this step."""

    step_id: int
    now_s: float  # monotonic seconds
    free_blocks: int  # free or cached and unheld
    cached_blocks: int = 0  # of them, those whose contents can be found again
    total_blocks: int
    block_size: int  # tokens
    free_seats: int
    token_budget: int  # tokens that may be computed in this step; during a reap, in the last one
    free_host_blocks: int  # room for swapped requests
    preemptions: int  # since the engine started
    token_s: float = 0.0  # seconds that a prefilled token adds to a step, as measured; 0: unknown
    context_s: float = 0.0  # seconds for each token that decodes read again, as measured; or 0
    fixed_s: float = 0.0  # seconds that a step takes whatever it computes, as measured; 0: unknown
    step_s: float = 0.0  # mean seconds of the forward passes of late; 0: unknown
    # Numbers of the tenants that are here or were lately, by their names
    tenants: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class StepBudget:
    """What may be computed in one step."""

    tokens: int  # of all requests together, at least 1
    prefill_chunk: int | None = None  # of one request's prompt, at least 1; None: all that is left


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionCosts:
    """What each victim's way back would cost, as measured so far. One element a victim."""

    recompute_tokens: IntArray  # to compute again, less what should still be cached at its return
    recompute_s: FloatArray  # seconds of the engine's time for them
    swap_blocks: IntArray  # held alone: to copy out, and later in
    swap_s: FloatArray  # seconds of the engine's time for both ways; +inf: it cannot be swapped
    free_host_blocks: int  # 0: nobody can be swapped

    def __post_init__(self) -> None:
        for name in ("recompute_tokens", "recompute_s", "swap_blocks", "swap_s"):
            object.__setattr__(self, name, _sealed(getattr(self, name)))
