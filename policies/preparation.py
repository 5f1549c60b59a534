"""Foreign code that may take long, in a thread of its own and for a limited time.

Importing a plugin and building its policies can take seconds, or for ever. Neither the engine's
loop nor the front's may wait for it: they look at `future`, and give the work up when they like.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")

# Whoever computes in Python lets others in after the switch interval. A forward pass asks for the
# lock hundreds of times, and would wait for Python's 5 ms each time.
_SWITCH_S = 100e-6
_USUAL_SWITCH_S = sys.getswitchinterval()

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 1.0

_counting = threading.Lock()
_num_running = 0

_set_error = ctypes.pythonapi.PyThreadState_SetAsyncExc


class _Abandoned(SystemExit):
    """Raised in a thread wherever it happens to be.

    Python makes the instance when something catches it. The next one is pending then, and raised
    where that goes on, and so on until nothing catches, as in `policies.hook_guard`.
    """

    def __init__(self) -> None:
        thread = threading.get_ident()
        _again[thread]


class _Nothing(Exception):
    """Raised and caught at once, by `_unmark`."""


def _unmark(thread: ctypes.c_ulong) -> None:
    """Take back the mark that an error is pending somewhere, with this thread's last one.

    Python 3.11 keeps it when an error is taken back, and drops it when one is raised. Until then it
    looks for errors at every call, and a call that is traced or profiled never gets further.
    """
    with suppress(_Nothing):
        _set_error(thread, ctypes.py_object(_Nothing))


class _Again:
    """`again[thread]` makes the error pending there, without a call, after which it is looked for.

    Had this been a call, the error would be raised within `_Abandoned.__init__`.
    """

    __getitem__ = staticmethod(
        ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
            ("PyThreadState_SetAsyncExc", ctypes.pythonapi),
            ((1, "thread"), (1, "error", _Abandoned)),
        )
    )


_again = _Again()


class Preparation(Generic[T]):
    """Does one piece of work, from now on. The process need not wait for it in order to end."""

    def __init__(self, work: Callable[[], T]) -> None:
        """Begin `work`. What it returns or raises comes in `future`, in another thread."""
        self.future: Future[T] = Future()
        self._lock = threading.Lock()
        self._is_over = False  # of the work, so that nothing is raised in what follows
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        _count(1)
        self._thread.start()

    def abandon(self) -> None:
        """Nobody wants the result any more. Work that computes is ended; a sleep goes on."""
        self.future.cancel()
        threading.Thread(target=self._end, daemon=True).start()

    def _run(self, work: Callable[[], T]) -> None:
        thread = ctypes.c_ulong(threading.get_ident())
        outcome: T | None = None
        error: BaseException | None = None
        try:
            outcome = work()
        except BaseException as caught:
            _set_error(thread, None)  # nothing comes before it that would raise the next one
            error = caught
        while not self._is_over:
            try:
                with self._lock:
                    self._is_over = True
            except _Abandoned:
                _set_error(thread, None)
        _unmark(thread)
        _count(-1)
        if not self.future.set_running_or_notify_cancel():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(outcome)  # type: ignore[arg-type]

    def _end(self) -> None:
        """Interrupt it, and again where it was not in Python code."""
        pause_s = _FIRST_PAUSE_S
        while self._thread.is_alive():
            with self._lock:
                if not self._is_over:
                    _again[self._thread.ident or 0]
            self._thread.join(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _count(change: int) -> None:
    global _num_running
    with _counting:
        _num_running += change
        sys.setswitchinterval(_SWITCH_S if _num_running else _USUAL_SWITCH_S)


def aside(work: Callable[[], object], limit_s: float) -> None:
    """Do work that nobody waits for, such as running finalizers, and end it after `limit_s`."""
    preparation = Preparation(work)
    timer = threading.Timer(limit_s, preparation.abandon)
    timer.daemon = True
    timer.start()
    preparation.future.add_done_callback(lambda _: timer.cancel())
