"""The pluggy markers and the version of the hook contract."""

import pluggy

PROJECT = "cadenza"
HOOKSPEC_VERSION = "0.1.0"  # semantic: a plugin for 0.1 may break with 0.2, never with 0.1.1

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
