"""The engine computes on the cores that it is given, or says which it could have."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from cadenza.engine.cores import stay_on


@pytest.fixture
def allowed() -> Iterator[set[int]]:
    """The cores that there are before and after a test."""
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    yield before
    os.sched_setaffinity(0, before)
    torch.set_num_threads(threads)


def test_a_thread_for_each_core_and_no_other_core(allowed: set[int]):
    core = max(allowed)

    stay_on([core])

    assert os.sched_getaffinity(0) == {core}
    assert torch.get_num_threads() == 1


def test_a_core_that_is_not_there_is_told_with_those_that_are(allowed: set[int]):
    with pytest.raises(
        ValueError, match="core 1023 is not one that this process may use: "
    ) as told:
        stay_on([min(allowed), 1023])

    assert str(told.value).endswith(", ".join(map(str, sorted(allowed))) + ".")
    assert os.sched_getaffinity(0) == allowed


def test_a_system_without_affinity_says_so(allowed: set[int], monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.delattr(os, "sched_setaffinity")
        with pytest.raises(ValueError, match="does not let a process choose"):
            stay_on([0])
