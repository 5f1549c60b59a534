"""The pluggy markers and the version of the hook contract."""

import pluggy

PROJECT = "cadenza"
# Semantic: 0.4 may change a hook in a way that breaks policies for 0.3, 0.3.1 may not. A policy
# that says `requires_hookspec = ">=0.3,<0.4"` is refused where that does not hold.
# 0.3.0: on_arrived, on_preempted, on_resumed, gate_arrivals and shed_load; the column `resumed`.
HOOKSPEC_VERSION = "0.3.0"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
