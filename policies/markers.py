"""The pluggy markers and the version of the hook contract."""

import pluggy

PROJECT = "cadenza"
# Semantic: 0.3 may change a hook in a way that breaks policies for 0.2, 0.2.1 may not. For authors
# to read: nothing checks yet which version a policy was written for.
HOOKSPEC_VERSION = "0.2.0"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
