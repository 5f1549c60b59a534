"""Ends hook calls that run for too long.

`SignalGuard` asks the kernel for SIGALRM by `setitimer(ITIMER_REAL)` and raises from the signal's
handler. It is that timer because the others count the CPU time of all threads of the process, a
forward pass's included, and stand still in `time.sleep`; and ITIMER_REAL sends SIGALRM only. The
timer runs during a guarded call alone, so that nothing else in the process is disturbed.

What Python cannot interrupt, one long call of C code, no guard ends: see `policies.blame`.
"""

from __future__ import annotations

import _thread
import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

# A thread that waits for a busy machine has spent no CPU time. Interrupting it would cost the
# policy its state and win nothing; nor may one that sleeps go on for ever.
PATIENCE_S = 0.050

_PATIENCE_FACTOR = 5  # times the limit, where that is more
_POLL_S = 1e-3  # between looks at one that had no time yet
_FRESH_S = 1e-3  # for so long a sample of the CPU clock serves


class Interrupted(Exception):
    """The call was ended, or tried to swallow its end; what it left behind may be half done."""


class HookGuard(Protocol):
    """Runs a call, for a limited time if it can."""

    def run(self, limit_s: float, call: Callable[..., T], *arguments: Any) -> T:
        """What `call(*arguments)` returns or raises.

        Raises:
            Interrupted: it went on for longer than `limit_s` and was ended.
        """

    def cpu_s(self) -> float:
        """CPU seconds that this thread has certainly spent since the latest `run` began."""


class NoGuard:
    """Ends nothing: for tests, the simulator, and policies that are trusted."""

    def run(self, limit_s: float, call: Callable[..., T], *arguments: Any) -> T:
        return call(*arguments)

    def cpu_s(self) -> float:
        """Unknown, so no excuse."""
        return float("inf")


class _Overrun(BaseException):
    """Raised where the call happens to be."""


class _Again:
    """`again[number]` makes a signal pending, and Python looks for signals only after that.

    It looks at the start of a function, at jumps back, and after a call; had this been written as
    a call, its signal would be seen in the handler that sends it.
    """

    __getitem__ = staticmethod(_thread.interrupt_main)


_again = _Again()


class SignalGuard:
    """Breaks Python code and sleeps in the main thread.

    A call is interrupted once its thread has computed for the limit, or once PATIENCE_S have gone
    by, and five times the limit. The next interruption is pending then, so that one that swallows
    the first meets another where it goes on, outside of what caught it, and so on until nothing
    catches. A late signal does nothing: the handler raises only inside of the call, and `run`
    itself is outside.

    Used as a context manager, which takes SIGALRM and gives it back.
    """

    def __init__(self) -> None:
        self._previous: Any = None
        self._limit_s = 0.0
        self._started_s = 0.0
        self._sampled_s = float("-inf")
        self._cpu_s = 0.0
        self._interrupted = False

    def __enter__(self) -> SignalGuard:
        """Take the signal.

        Raises:
            ValueError: this is not the main thread.
        """
        self._previous = signal.signal(signal.SIGALRM, self._on_alarm)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # drops one that is under way
        # None: whoever had it was not Python
        signal.signal(signal.SIGALRM, self._previous or signal.SIG_DFL)

    def run(self, limit_s: float, call: Callable[..., T], *arguments: Any) -> T:
        now_s = time.monotonic()
        if now_s - self._sampled_s > _FRESH_S:
            self._sampled_s, self._cpu_s = now_s, time.thread_time()
        self._started_s, self._limit_s, self._interrupted = now_s, limit_s, False
        signal.setitimer(signal.ITIMER_REAL, limit_s, _POLL_S)
        try:
            answer = call(*arguments)
        except BaseException:
            # Gone before the timer is, with all finalizers of the frames that it held
            if not self._interrupted:
                raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        if self._interrupted:
            raise Interrupted
        return answer

    def cpu_s(self) -> float:
        # Between sample and start no more CPU time than wall time can have gone by
        return time.thread_time() - self._cpu_s - (self._started_s - self._sampled_s)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        if not _is_in_call(frame):
            return
        if not self._interrupted and not self._is_over():
            return
        self._interrupted = True
        _again[signal.SIGALRM]
        raise _Overrun

    def _is_over(self) -> bool:
        elapsed_s = time.monotonic() - self._started_s
        patience_s = max(PATIENCE_S, _PATIENCE_FACTOR * self._limit_s)
        return elapsed_s >= patience_s or self.cpu_s() >= self._limit_s


def _is_in_call(frame: FrameType | None) -> bool:
    """Whether `SignalGuard.run` waits for what `frame` does, which is not handling a signal."""
    while frame is not None and frame.f_code is not _HANDLER:
        frame = frame.f_back
        if frame is not None and frame.f_code is _RUN:
            return True
    return False


_RUN = SignalGuard.run.__code__
_HANDLER = SignalGuard._on_alarm.__code__
