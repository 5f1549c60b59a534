"""Just enough victims, judged as a set."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.blocks import Blocks
from cadenza.scheduler.planning import Counts

FreedBy = Callable[[Sequence[Blocks]], int]


def just_enough(
    tables: Sequence[Blocks], growth: Counts, deficit: int, freed_by: FreedBy
) -> npt.NDArray[np.intp]:
    """Indices of the victims that clear `deficit` blocks, in the given order of preference.

    A victim gives the blocks that the whole set holds alone (`freed_by`) and its own growth, which
    it no longer needs. Takes from the front until the deficit is cleared, then spares whoever
    turned out not to be needed, the least preferred first.

    Args:
        tables: block tables, most preferred victim first.
        growth: blocks that each of them was about to take.
        deficit: blocks that are missing; at least one.
        freed_by: how many blocks become available when all given tables are released.
    """

    def clears(indices: Sequence[int]) -> bool:
        gain = freed_by([tables[i] for i in indices]) + int(growth[list(indices)].sum())
        return gain >= deficit

    chosen: list[int] = []
    for index in range(len(tables)):
        chosen.append(index)
        if clears(chosen):
            break
    for index in reversed(chosen[:-1]):
        fewer = [other for other in chosen if other != index]
        if clears(fewer):
            chosen = fewer
    return np.array(chosen, dtype=np.intp)
