"""The pluggy markers and the version of the hook contract."""

import pluggy

PROJECT = "cadenza"
# Semantic: 0.3 may change a hook in a way that breaks policies for 0.2, 0.2.1 may not. A policy
# that says `requires_hookspec = ">=0.2,<0.3"` is refused where that does not hold.
# 0.2.1: on_admitted and on_generated; tenants, targets, deadlines and waits as columns.
HOOKSPEC_VERSION = "0.2.1"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
