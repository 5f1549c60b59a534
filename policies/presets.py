"""Profiles under names that operators know. `--scheduling-policy` and `preset = ...` take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A choice of policies by decision; what it leaves out is decided by the defaults."""

    summary: str
    decisions: Mapping[str, str] = field(default_factory=dict)  # short name -> policy
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # policy -> its options
    watermark: float | None = None  # None: whatever holds otherwise


PRESETS: dict[str, Preset] = {
    "fcfs": Preset(summary="first come, first served; every decision by its default"),
    "priority": Preset(
        summary="the lowest priority number first; it may push out those with higher numbers",
        decisions={
            "order": "priority",
            "displacement": "strict-priority",
            "victims": "lowest-priority",
        },
    ),
    "prefix-aware": Preset(
        summary="the longest cached prefix first; of equal prompts one goes ahead of the others",
        decisions={"order": "prefix-aware"},
    ),
    "fair-share": Preset(
        summary="tenants get the same service, whatever they send",
        decisions={"order": "fair-share"},
    ),
    "slo": Preset(
        summary="the earliest due first, by deadlines and by targets for tokens",
        decisions={"order": "edf"},
    ),
    "vllm-like": Preset(
        summary="as vLLM decides: no reservation, no watermark, the newest is recomputed",
        decisions={
            "order": "fcfs",
            "reserve": "none",
            "victims": "newest",
            "displacement": "nobody",
            "preemption": "recompute",
        },
        watermark=0.0,
    ),
}
