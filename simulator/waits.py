"""Who waited longest for a first seat, and for what."""

from __future__ import annotations

from typing import Any

import numpy as np

from cadenza.simulator.run import Run

_TOLD = 10
_FULL = 0.9  # share of the pool; what is beyond is too little for most prompts


def longest_waits(run: Run) -> list[dict[str, Any]]:
    """The ten longest waits, and what there was none of meanwhile."""
    wait_s = np.nan_to_num(run.admitted_s - run.arrival_s)
    order = np.argsort(-wait_s, kind="stable")[:_TOLD].tolist()
    return [_told(run, index) for index in order if wait_s[index] > 0]


def _told(run: Run, index: int) -> dict[str, Any]:
    request, admitted_s = run.trace.requests[index], float(run.admitted_s[index])
    arrival_s = request.arrival_s
    ends_s = run.part_end_s  # those of its part have the same, and alone can have met it
    first = int(np.searchsorted(ends_s, ends_s[index]))
    last = int(np.searchsorted(ends_s, ends_s[index], side="right"))
    no_seats, no_blocks = _shares(run, arrival_s, min(admitted_s, float(ends_s[index])))
    lacked = (
        "seats" if no_seats >= max(no_blocks, 0.5) else "blocks" if no_blocks >= 0.5 else "turn"
    )
    return {
        "request": index,
        "tenant": request.tenant,
        "arrival_s": arrival_s,
        "prompt_tokens": request.prompt_tokens,
        "wait_s": admitted_s - arrival_s,
        "lacked": lacked,  # "turn": neither, so that others were preferred, or tokens were short
        "no_seats": no_seats,  # share of the wait in which every seat was taken
        "no_blocks": no_blocks,  # share of it in which nearly all blocks were held
        "overtaken_by": int((run.admitted_s[index + 1 : last] < admitted_s).sum()),
        # earlier ones that waited, too
        "ahead": int((run.admitted_s[first:index] >= arrival_s).sum()),
    }


def _shares(run: Run, begin_s: float, end_s: float) -> tuple[float, float]:
    """Of that time, in which all seats, and in which nearly all blocks, were taken."""
    steps = run.steps
    during = slice(*np.searchsorted(steps.began_s, (begin_s, end_s)))
    took_s = steps.took_s[during]
    whole_s = float(took_s.sum())
    if not whole_s:
        return 0.0, 0.0
    no_seats = steps.running[during] >= run.config.max_num_seqs
    no_blocks = steps.held_blocks[during] >= _FULL * run.config.num_blocks
    return float(took_s[no_seats].sum()) / whole_s, float(took_s[no_blocks].sum()) / whole_s
