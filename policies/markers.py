"""The pluggy markers and the version of the hook contract."""

import pluggy

PROJECT = "cadenza"
HOOKSPEC_VERSION = "0.2.0"  # semantic: a plugin for 0.2 may break with 0.3, never with 0.2.1

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
