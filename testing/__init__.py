"""What authors of policies test with: a scheduler without a model, views made by hand, checks.

    from cadenza.testing import Driver, PolicyConformance, request_columns, step_view

A scheduler without a model:

    Driver              runs the scheduler step by step, and checks its invariants after each
    FakeRunner          in place of the model: its tokens betray every mistake
    oracle              the tokens that a FakeRunner has for a prompt
    ManualClock         seconds that pass when the test says so
    profile_of          a profile of policy classes that are registered nowhere

Views made by hand, which fill in what is not given:

    request_columns     requests that wait
    running_columns     requests that run
    random_requests     requests of all kinds, by a seed
    step_view           a step
    preemption_costs    what each victim would cost
    cached_blocks       blocks of the prefix cache that nobody holds
    arrival_columns     calls that arrive at the front process
    service_view        what the front process knows of the service

Checks, and recordings:

    PolicyConformance   what every policy owes the scheduler, as tests of a subclass
    Failure             what such a test raises
    RecordingDecisions  asks policies, and keeps what they were shown and what they answered
    write_recording     that, into a file
    read_recording      that, from a file
    replay              what another policy would have decided

`python -m pydoc cadenza.testing.NAME` shows one of them, as names are imported when they are first
used: pytest imports this package in every session.
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
