"""Just enough victims, judged as a set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.blocks import Blocks
from cadenza.scheduler.planning import Counts


def just_enough(
    tables: Sequence[Blocks], growth: Counts, deficit: int, references: Blocks
) -> npt.NDArray[np.intp]:
    """Indices of the victims that clear `deficit` blocks, in the given order of preference.

    A victim gives the blocks that the whole set holds alone, and its own growth, which it no longer
    needs. Takes from the front until the deficit is cleared, then spares whoever turned out not to
    be needed, the least preferred first.

    Args:
        tables: block tables, most preferred victim first; no block twice in one table.
        growth: blocks that each of them was about to take.
        deficit: blocks that are missing; at least one.
        references: by block, how many tables hold it. Not changed.
    """
    left = references.copy()
    chosen: list[int] = []
    gain = 0
    for index, table in enumerate(tables):
        if gain >= deficit:
            break
        left[table] -= 1
        gain += int((left[table] == 0).sum() + growth[index])
        chosen.append(index)
    for index in reversed(chosen[:-1]):
        table = tables[index]
        without = gain - int((left[table] == 0).sum() + growth[index])
        if without >= deficit:
            left[table] += 1
            gain = without
            chosen.remove(index)
    return np.array(chosen, dtype=np.intp)
