"""Ends hook calls that run for too long.

`SignalGuard` asks the kernel for SIGALRM by `setitimer(ITIMER_REAL)` and raises from the signal's
handler. It is that timer because the others count the CPU time of all threads of the process, a
forward pass's included, and stand still in `time.sleep`; and ITIMER_REAL sends SIGALRM only. The
timer runs during a guarded call alone, so that nothing else in the process is disturbed.

What Python cannot interrupt, one long call of C code, no guard ends: see `policies.blame`.
"""

from __future__ import annotations

# What `signal` wraps, without the enumerations, which take longer than the calls
import _signal  # type: ignore[import-not-found]
import _thread
import resource
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from cadenza.policies.places import interrupted_at

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

T = TypeVar("T")

# A thread that waits for a busy machine has spent no CPU time. Interrupting it costs the policy its
# state, and where it just got the processor back it would end by itself. Others wait all the same.
GRACE_S = 0.005  # beyond the limit
PATIENCE_S = 0.050  # in all, whatever the machine does

_PATIENCE_FACTOR = 5  # times the limit, where that is more
_POLL_S = 1e-3  # between looks at one that had no time yet
_FRESH_S = 1e-3  # for so long a sample of the CPU clock serves

_IDLE_LOOKS = 2  # in a row, of one that sleeps
_IDLE_SHARE = 0.3  # of the time between looks; beyond it, it computes
_PROMPT = 0.5, 1.5  # polls between looks at one whom nothing keeps from running

_LONGEST_CHAIN = 100  # a chain of errors may be made to have no end

_traceback_of: Callable[[BaseException], TracebackType | None]
_traceback_of = vars(BaseException)["__traceback__"].__get__
_context_of: Callable[[BaseException], BaseException | None]
_context_of = vars(BaseException)["__context__"].__get__

_ALARM = int(signal.SIGALRM)
_THREAD = getattr(resource, "RUSAGE_THREAD", None)  # Linux only; elsewhere patience has to do


class Interrupted(Exception):
    """The call was ended, or tried to swallow its end; what it left behind may be half done."""

    def __init__(self, place: str = "") -> None:
        """`place`: file, line and function at which it was; empty: unknown."""
        super().__init__(place)
        self.place = place


class Disarmed(Exception):
    """The call took away the signal or the timer by which it would be ended. They are back."""


class HookGuard(Protocol):
    """Runs a call, for a limited time if it can."""

    def run(self, limit_s: float, call: Callable[..., T], *arguments: Any) -> T:
        """What `call(*arguments)` returns or raises.

        Raises:
            Interrupted: it went on for longer than `limit_s` and was ended.
            Disarmed: it has ended, but could not have been ended by anybody else.
        """

    def taken_s(self) -> float:
        """Seconds that the latest call has certainly taken by its own will.

        That is the time that its thread computed, or all of it, if it was seen to sleep.
        """

    def own_s(self, elapsed_s: float) -> float:
        """Of the seconds that the latest call has taken, those that it did not wait to be run.

        All of them, if it may have slept: only a thread that never gave up the processor by itself
        certainly waited for it. Ask as soon as the call has ended.
        """


class NoGuard:
    """Ends nothing: for tests, the simulator, and policies that are trusted."""

    def run(self, limit_s: float, call: Callable[..., T], *arguments: Any) -> T:
        return call(*arguments)

    def taken_s(self) -> float:
        """Unknown, so no excuse."""
        return float("inf")

    def own_s(self, elapsed_s: float) -> float:
        return elapsed_s


class _Overrun(BaseException):
    """Raised where the call happens to be."""


class _Again:
    """`again[number]` makes a signal pending, and Python looks for signals only after that.

    It looks at the start of a function, at jumps back, and after a call; had this been written as
    a call, its signal would be seen in the handler that sends it.
    """

    __getitem__ = staticmethod(_thread.interrupt_main)


_again = _Again()


class _Look(NamedTuple):
    """A thread's situation."""

    now_s: float
    cpu_s: float  # that it has computed
    switches: int  # how often it gave up the processor by itself


class Drowsiness:
    """Tells a thread that sleeps from one that is kept from running, by looks POLL_S apart.

    Both compute next to nothing. One that the machine keeps from running does not give up the
    processor. One that waits for Python's lock does, but is late for its looks, or computes in
    between: whoever has the lock keeps it for longer than that, or lets others in at once.
    """

    def __init__(self) -> None:
        self._before: _Look | None = None
        self._num_idle = 0

    def sleeps(self, now_s: float, cpu_s: float, switches: int) -> bool:
        """Take another look."""
        before, self._before = self._before, _Look(now_s, cpu_s, switches)
        if before is None:
            return False
        since_s = now_s - before.now_s
        is_idle = (
            switches > before.switches
            and cpu_s - before.cpu_s <= _IDLE_SHARE * since_s
            and _PROMPT[0] <= since_s / _POLL_S <= _PROMPT[1]
        )
        self._num_idle = self._num_idle + 1 if is_idle else 0
        return self._num_idle >= _IDLE_LOOKS


class SignalGuard:
    """Breaks Python code and sleeps in the main thread.

    A call is interrupted once its thread has computed for the limit, or is seen to sleep beyond it;
    or, whatever it does, a grace after the limit, if it had the processor again for two looks. Once
    PATIENCE_S have gone by, and five times the limit, that no longer matters.

    The next interruption is pending then, so that one that swallows the first meets another where
    it goes on, outside of what caught it, and so on until nothing catches. A late signal does
    nothing: the handler raises only inside of the call, and `run` itself is outside.

    Used as a context manager, which takes SIGALRM and gives it back.

    Where Python cannot raise, in a finalizer or a callback of a weak reference, an interruption
    ends that alone, and another follows. Python would show each with its traceback, which nobody
    can use.
    """

    def __init__(self, grace_s: float = GRACE_S) -> None:
        """`grace_s` is what a call that computes too little to be ended may take beyond a limit."""
        self._grace_s = grace_s
        self._previous: Any = None
        self._show: Callable[[UnraisableHookArgs], object] = sys.unraisablehook
        self._handler = self._on_alarm  # one object, to be known again
        self._limit_s = 0.0
        self._started_s = 0.0
        self._sampled_s = float("-inf")
        self._cpu_s = 0.0
        self._switches = 0
        self._interrupted = False
        self._place = ""
        self._looked_s = float("-inf")
        self._drowsiness: Drowsiness | None = None
        self._slept = False

    def __enter__(self) -> SignalGuard:
        """Take the signal.

        Raises:
            ValueError: this is not the main thread.
        """
        self._previous = signal.signal(signal.SIGALRM, self._handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
        self._show, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
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
        sys.unraisablehook = self._show

    def run(self, limit_s: float, call: Callable[..., T], *arguments: Any) -> T:
        now_s = time.monotonic()
        if now_s - self._sampled_s > _FRESH_S:
            self._sampled_s, self._cpu_s = now_s, time.thread_time()
            self._switches = _switches()
        self._started_s, self._limit_s = now_s, limit_s
        self._interrupted = self._slept = False
        self._drowsiness = None
        signal.setitimer(signal.ITIMER_REAL, limit_s, _POLL_S)
        try:
            answer = call(*arguments)
        except BaseException as error:
            if not self._interrupted:
                raise
            # While the timer runs, as this runs the finalizers of all that the frames hold
            forget_frames(error)
        finally:
            # No Python function from here on: a late signal would raise in it
            left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, 0.0)
            # One that was stopped has no interval; one that has just run out may have nothing left
            is_armed = interval_s == _POLL_S and left_s <= limit_s + _POLL_S
            if _signal.getsignal(_ALARM) is not self._handler:
                _signal.signal(_ALARM, self._handler)
                is_armed = False
            if _ALARM in _signal.pthread_sigmask(_signal.SIG_BLOCK, ()):
                _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_ALARM,))
                is_armed = False
            # Else calls of C code would go on after a signal. Nobody can tell how that was
            _signal.siginterrupt(_ALARM, True)
        if self._interrupted:
            raise Interrupted(self._place)
        if not is_armed:
            raise Disarmed
        return answer

    def taken_s(self) -> float:
        return time.monotonic() - self._started_s if self._slept else self._computed_s()

    def own_s(self, elapsed_s: float) -> float:
        if _THREAD is None or _switches() != self._switches:
            return elapsed_s
        return min(elapsed_s, time.thread_time() - self._cpu_s)  # or a little less, see there

    def _computed_s(self) -> float:
        # Between sample and start no more CPU time than wall time can have gone by
        return time.thread_time() - self._cpu_s - (self._started_s - self._sampled_s)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        if not _is_in_call(frame):
            return
        if not self._interrupted:
            if not self._is_over():
                return
            # Before the next signal is pending, which would be lost in there
            self._place = interrupted_at(frame, _RUN)
        self._interrupted = True
        _again[signal.SIGALRM]
        raise _Overrun

    def _on_unraisable(self, unraisable: UnraisableHookArgs) -> None:
        if unraisable.exc_type is not _Overrun:
            self._show(unraisable)

    def _is_over(self) -> bool:
        now_s = time.monotonic()
        elapsed_s, since_s = now_s - self._started_s, now_s - self._looked_s
        if elapsed_s < self._limit_s:
            return False  # somebody else's signal
        self._looked_s = now_s
        if self._computed_s() >= self._limit_s or self._is_asleep(now_s):
            return True
        if elapsed_s >= self._limit_s + self._grace_s and since_s <= _PROMPT[1] * _POLL_S:
            return True
        return elapsed_s >= max(PATIENCE_S, _PATIENCE_FACTOR * self._limit_s)

    def _is_asleep(self, now_s: float) -> bool:
        if _THREAD is None:
            return False
        self._drowsiness = self._drowsiness or Drowsiness()
        self._slept = self._drowsiness.sleeps(now_s, time.thread_time(), _switches())
        return self._slept


def forget_frames(error: BaseException | None) -> None:
    """Clear all frames that an error came through, and those before it in its chain.

    pluggy's frames and their error hold each other, and with them a policy that was replaced, whose
    finalizer would run whenever the garbage collector finds them. Nothing of the error's own runs.
    """
    for _ in range(_LONGEST_CHAIN):
        if error is None:
            return
        trace = _traceback_of(error)
        while trace is not None:
            try:  # noqa: SIM105 - that is Python code, in which a signal would raise
                trace.tb_frame.clear()
            except RuntimeError:  # it has not ended
                pass
            trace = trace.tb_next
        error = _context_of(error)


def _switches() -> int:
    """How often this thread has given up the processor by itself."""
    return 0 if _THREAD is None else resource.getrusage(_THREAD).ru_nvcsw


def _is_in_call(frame: FrameType | None) -> bool:
    """Whether `SignalGuard.run` waits for what `frame` does, which is foreign or may be ended."""
    if frame is not None and frame.f_code in _OURS:
        return False
    while frame is not None and frame.f_code is not _HANDLER:
        frame = frame.f_back
        if frame is not None and frame.f_code is _RUN:
            return True
    return False


_RUN = SignalGuard.run.__code__
_OURS = (forget_frames.__code__, SignalGuard._on_unraisable.__code__)
_HANDLER = SignalGuard._on_alarm.__code__
