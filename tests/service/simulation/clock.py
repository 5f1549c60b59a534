"""The monotonic clock of a simulation in place of the system's."""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from unittest import mock

_system_s = time.monotonic


@contextmanager
def all_clocks_are(clock: Callable[[], float]) -> Iterator[None]:
    """Whoever of the service or the engine asks for the time asks `clock`."""
    _bind_late()
    with mock.patch("time.monotonic", clock):
        yield


def _now_s() -> float:
    return time.monotonic()


@functools.cache
def _bind_late() -> None:
    """Have defaults that are the system's clock look it up when they are called."""
    for name, module in [*sys.modules.items()]:
        if name.startswith(("cadenza.service.", "cadenza.engine.")):
            for _, cls in inspect.getmembers(module, inspect.isclass):
                for function in vars(cls).values():
                    if isinstance(function, FunctionType):
                        _rebind(function)


def _rebind(function: FunctionType) -> None:
    defaults = function.__defaults__ or ()
    if any(each is _system_s for each in defaults):
        function.__defaults__ = tuple(_now_s if each is _system_s else each for each in defaults)
    for name, each in (function.__kwdefaults__ or {}).items():
        if each is _system_s:
            function.__kwdefaults__[name] = _now_s
