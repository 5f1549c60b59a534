"""What authors of policies test with: a scheduler without a model, views made by hand, checks.

    from cadenza.testing import Driver, PolicyConformance, request_columns, step_view

Names are imported when they are first used, since pytest imports this package in every session.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cadenza.testing.arrivals import arrival_columns, service_view
    from cadenza.testing.clock import ManualClock
    from cadenza.testing.comparison import replay
    from cadenza.testing.conformance import PolicyConformance
    from cadenza.testing.driver import Driver
    from cadenza.testing.fake_runner import FakeRunner, oracle
    from cadenza.testing.profiles import profile_of
    from cadenza.testing.recording import RecordingDecisions, read_recording, write_recording
    from cadenza.testing.tables import (
        cached_blocks,
        preemption_costs,
        random_requests,
        request_columns,
        running_columns,
        step_view,
    )
    from cadenza.testing.trial import Failure

__all__ = [
    "Driver",
    "Failure",
    "FakeRunner",
    "ManualClock",
    "PolicyConformance",
    "RecordingDecisions",
    "arrival_columns",
    "cached_blocks",
    "oracle",
    "preemption_costs",
    "profile_of",
    "random_requests",
    "read_recording",
    "replay",
    "request_columns",
    "running_columns",
    "service_view",
    "step_view",
    "write_recording",
]

_MODULES = {
    "arrivals": ("arrival_columns", "service_view"),
    "clock": ("ManualClock",),
    "conformance": ("PolicyConformance",),
    "driver": ("Driver",),
    "fake_runner": ("FakeRunner", "oracle"),
    "profiles": ("profile_of",),
    "recording": ("RecordingDecisions", "read_recording", "write_recording"),
    "comparison": ("replay",),
    "tables": (
        "cached_blocks",
        "preemption_costs",
        "random_requests",
        "request_columns",
        "running_columns",
        "step_view",
    ),
    "trial": ("Failure",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
