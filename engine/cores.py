"""Which cores of the machine the engine computes on."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch


def stay_on(cores: Sequence[int]) -> None:
    """Keep the caller, and threads that it starts later, to some cores, with a thread for each.

    So cores can be left to the front process, to other engines, or to another socket's memory.
    Raises ValueError where one is not there, or not ours to use.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise ValueError("cores are given, but this system does not let a process choose them.")
    allowed = os.sched_getaffinity(0)
    if missing := sorted(set(cores) - allowed):
        usable = ", ".join(map(str, sorted(allowed)))
        raise ValueError(f"core {missing[0]} is not one that this process may use: {usable}.")
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))
