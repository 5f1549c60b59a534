"""The columns of the request table."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BoolColumn = npt.NDArray[np.bool_]
IntColumn = npt.NDArray[np.int64]
FloatColumn = npt.NDArray[np.float64]

_DTYPES: dict[str, type[np.generic]] = {
    "npt.NDArray[np.int8]": np.int8,
    "BoolColumn": np.bool_,
    "IntColumn": np.int64,
    "FloatColumn": np.float64,
}


class Columns:
    """One array a field, one element a row. The annotations below are the list of columns."""

    state: npt.NDArray[np.int8]  # values of `State`
    waits: BoolColumn  # wants a seat: WAITING, PREEMPTED or SWAPPED
    parked: BoolColumn
    request: IntColumn  # the first of its choices
    choices: IntColumn  # that the row stands for, each with a seat; 0: the row is free
    arrival: IntColumn  # rank; the choices of a request have ranks one after another
    arrival_s: FloatColumn
    tenant: IntColumn  # number of `Tenants`
    priority: IntColumn
    deadline_s: FloatColumn
    ttft_target_s: FloatColumn
    tpot_target_s: FloatColumn
    waits_since_s: FloatColumn  # when it arrived, or last lost its seat
    last_run_s: FloatColumn  # the last step that planned it; before the first, its arrival
    prompt_tokens: IntColumn
    num_tokens: IntColumn  # prompt and output
    computed_tokens: IntColumn  # keys and values are in the cache
    generated_tokens: IntColumn
    max_tokens: IntColumn
    predicted_tokens: IntColumn  # of output; 0: nobody predicted
    cached_tokens: IntColumn  # of a waiting row, in the prefix index now
    host_tokens: IntColumn  # of a swapped row, in its copy on the host
    next_block_key: IntColumn
    blocks_held: IntColumn
    published_blocks: IntColumn  # leading blocks offered to the prefix index
    prefix_block: IntColumn  # end of the published prefix that its blocks continue; -1: of none
    prefix_name: IntColumn  # of that publication
    promised_blocks: IntColumn  # kept free until its choices have their own tails
    shares_tail: BoolColumn  # its partial last block may be held by other choices too
    resumed: BoolColumn  # had output before it came, or has seen policies come and go
    admission: IntColumn  # rank of the first admission
    preemptions: IntColumn
    overtakes: IntColumn
    starving: BoolColumn  # a guard marked it since it arrived or lost its seat
    pinned_until: IntColumn  # generated tokens; before that others are preferred as victims
    seat: IntColumn  # of its first choice; -1: none
    credit: IntColumn  # slot in `Credits`
    ignore_eos: BoolColumn
    has_stop_ids: BoolColumn
    may_swap: BoolColumn
    may_recompute: BoolColumn

    def __init__(self) -> None:
        self.by_name: dict[str, npt.NDArray[Any]] = {}
        self.size = 0

    def grow(self, size: int) -> None:
        """Make room for `size` rows; new ones are all zero."""
        for name, annotation in Columns.__annotations__.items():
            column = np.zeros(size, dtype=_DTYPES[annotation])
            if self.size:
                column[: self.size] = self.by_name[name]
            self.by_name[name] = column
            setattr(self, name, column)
        self.size = size

    def clear(self, row: int) -> None:
        """Set every column of a row to zero."""
        for column in self.by_name.values():
            column[row] = 0

    def copy(self, source: int, row: int) -> None:
        """Give `row` the values of `source`."""
        for column in self.by_name.values():
            column[row] = column[source]


def all_true(mask: BoolColumn) -> bool:
    """`mask.all()`, without NumPy's wrappers, which cost more than the work."""
    return bool(np.count_nonzero(mask) == len(mask))


def where(mask: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Indices of what is not zero: `np.flatnonzero`, whose wrappers cost more than the work."""
    return mask.nonzero()[0]
