"""The pluggy markers and the version of the hook contract."""

import pluggy

PROJECT = "cadenza"
# Semantic: 0.4 may change a hook in a way that breaks policies for 0.3, 0.3.1 may not. A policy
# that says `requires_hookspec = ">=0.3,<0.4"` is refused where that does not hold.
# 0.3.0: predict_lengths, plan_budget, rank_cached_blocks, gate_arrivals, shed_load, on_arrived,
# on_preempted and on_resumed; `resumed` and `blocks_alone`; what a step and its contexts cost;
# per_request. 0.3.1: `tenants`, numbers by name. 0.3.2: `wait_s` of `ServiceView`.
HOOKSPEC_VERSION = "0.3.2"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
