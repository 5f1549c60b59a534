"""The soak's program, for a moment: `make soak` runs it for half an hour."""

from __future__ import annotations

import pytest

from tests.scheduler import soak


def test_it_tells_operations_leaks_and_growth_after_both_controls():
    told = soak.soak(first_seed=1, seconds=0, operations=2000)

    assert told["operations"] >= 2000
    assert told["leaked_blocks"] == 0
    assert told["control_operations"] <= soak.LEAK_PATIENCE
    assert told["control_rss_mb"] >= 0.9 * soak.PLANTED_MB
    assert told["first_seed"] == 1


def test_without_a_leak_the_control_says_that_it_notices_none(monkeypatch):
    monkeypatch.setattr(soak, "LEAK_EVERY", 10**9)
    monkeypatch.setattr(soak, "LEAK_PATIENCE", 1000)

    with pytest.raises(soak.LeakUnnoticed, match="is not noticed"):
        soak.operations_until_a_leak_is_noticed(1)
