"""Every hook call in the log, for whoever asked for it; nothing is attached otherwise."""

from __future__ import annotations

import time
from typing import Any

import pluggy
import structlog

_log = structlog.get_logger(__name__)


def trace_calls(manager: pluggy.PluginManager) -> None:
    """Log policy, hook and microseconds of every call of this manager's hooks."""
    started: list[int] = []  # a stack, as calls may nest

    def before(hook: str, impls: Any, arguments: Any) -> None:
        started.append(time.perf_counter_ns())

    def after(outcome: pluggy.Result[Any], hook: str, impls: Any, arguments: Any) -> None:
        us = (time.perf_counter_ns() - started.pop()) / 1000
        policy = ", ".join(impl.plugin_name for impl in impls)
        _log.info("hook call", policy=policy, hook=hook, us=round(us, 1))

    manager.add_hookcall_monitoring(before, after)
