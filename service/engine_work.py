"""All rows that have not ended, and which of them the present engine has.

Rows that no engine has wait here for the next one that serves.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from cadenza.service.engine_rows import Row, Rows
from cadenza.service.errors import EngineUnavailable
from cadenza.service.news import News
from cadenza.service.submissions import Branch, Submission
from cadenza.service.suspects import Suspects
from cadenza.wire.messages import (
    Cancel,
    Credit,
    Decision,
    Finish,
    PromptScores,
    Reprioritise,
    SetDeadline,
    Stall,
    Submit,
    ToEngine,
)

_POISON = (
    "The engine failed three times at the same place of this request, the last time at no other's; "
    "it is not tried again."
)


class EngineWork:
    """Every row gets an end: a finishing token, or `on_failed`."""

    def __init__(
        self, deliver: Callable[[ToEngine], int], show: Callable[[Sequence[Decision]], None]
    ) -> None:
        """
        Args:
            deliver: sends to the engine; returns the message's place among all it was sent.
            show: tells watchers what no engine can tell them.
        """
        self._deliver = deliver
        self._show = show
        self._rows = Rows(self._give_up)
        self._ends: deque[tuple[int, Decision]] = deque()  # by the place of what tells the engine
        self._suspects = Suspects()
        self._is_served = False  # by an engine that is ready
        self._failure: str | None = None  # why there is none any more

    def __len__(self) -> int:
        """Rows that have not ended."""
        return len(self._rows)

    @property
    def is_overdue(self) -> bool:
        """Whether a row's deadline has passed, and the engine that has the row has not ended it."""
        now_s = time.monotonic()
        return any(
            branch.submit.deadline_s is not None
            and branch.submit.deadline_s <= now_s
            and branch.submission.place is not None
            for branch in self._rows
        )

    def submit(self, message: Submit, rows: Sequence[Row]) -> None:
        """Send a prompt, and hand what comes back for its `message.n` rows to `rows`, in order.

        While there is no engine it waits for the next one.

        Raises:
            EngineUnavailable: there is none any more.
        """
        if self._failure is not None:
            raise EngineUnavailable(self._failure)
        assert len(rows) == message.n
        submission = self._rows.add(message, rows)
        if self._is_served and not self._suspects.are_tried:
            self._send(submission)

    def cancel(self, request: int) -> None:
        """Forget a row and tell the engine, if it has not ended. Idempotent, never raises."""
        if branch := self._rows.remove(request):
            self._end(branch, Cancel(request), "aborted")

    def finish(self, request: int, tokens_kept: int) -> None:
        """End a row normally after `tokens_kept` tokens, and forget it. Never raises."""
        if branch := self._rows.remove(request):
            self._end(branch, Finish(request, tokens_kept), "stopped")

    def grant(self, request: int, tokens: int) -> None:
        """Let all rows that were submitted with one have `tokens` more. Never raises."""
        if branch := self._rows.get(request):
            branch.submission.grant(tokens)
            self._tell(branch.submission, Credit(request, tokens))

    def stall(self, request: int, *, is_stalled: bool) -> None:
        """The reader of a row takes nothing for now, or does again. Never raises."""
        if branch := self._rows.get(request):
            branch.is_stalled = is_stalled
            self._tell(branch.submission, Stall(request, is_stalled))

    def reprioritise(self, request: int, priority: int) -> None:
        """Give a row that has not ended another priority. Never raises."""
        if branch := self._rows.get(request):
            branch.submit = replace(branch.submit, priority=priority)
            self._tell(branch.submission, Reprioritise(request, priority))

    def set_deadline(self, request: int, deadline_s: float | None) -> None:
        """Give a row that has not ended another deadline, None being none. Never raises."""
        if branch := self._rows.get(request):
            branch.submit = replace(branch.submit, deadline_s=deadline_s)
            self._tell(branch.submission, SetDeadline(request, deadline_s))

    # what comes from the engine

    def hand_out(
        self, news: News, scores: Sequence[PromptScores], decisions: Sequence[Decision]
    ) -> None:
        """Tell the rows what a step brought them."""
        self._rows.hand_out(news, scores, decisions)

    def refuse(self, request: int, message: str) -> None:
        """The engine cannot do this row, and no other could."""
        self._rows.fail(request, message)

    # engines come and go

    def engine_lost(self, reason: str, received: int, step_id: int) -> Sequence[Decision]:
        """The engine is gone after it had handled `received` messages, and another is to go on.

        Returns what neither can tell.
        """
        at_work = self._rows.at_work(received) if self._is_served else ()
        self._suspects.engine_died(at_work)
        self._is_served = False
        untold = [end for _, end in self._ends]
        self._ends.clear()
        untold += self._rows.interruptions(reason, step_id)
        self._rows.interrupt()
        return untold

    def acquit(self) -> None:
        """No row is to blame for the latest loss."""
        self._suspects.acquit()

    def convict(self) -> None:
        """Before another engine begins: end the rows that the latest died of, if that is known."""
        if guilty := self._suspects.convict():
            for branch in tuple(guilty.branches.values()):
                self._show([_ended(branch, "failed")])
                self._rows.fail(branch.number, _POISON)

    def engine_ready(self) -> None:
        """Another engine serves."""
        self._is_served = True
        self._send_waiting(is_idle=True)

    def has_handled(self, received: int, *, is_idle: bool) -> None:
        """After a step: send what waited for suspects to be tried, if anything did."""
        while self._ends and self._ends[0][0] <= received:
            self._ends.popleft()  # which the engine has told of
        if self._suspects.are_tried:
            self._rows.settle()
            self._send_waiting(is_idle=is_idle)

    def fail(self, reason: str) -> None:
        """There is no engine any more."""
        self._failure, self._is_served = reason, False
        self._rows.fail_all(reason)

    def _send_waiting(self, *, is_idle: bool) -> None:
        """Rows that the engine does not have; while there are suspects, one of them at most."""
        if self._suspects.are_tried:
            if each := self._suspects.next(is_idle=is_idle, knows_ends=not self._ends):
                if each.place is None:
                    self._send(each)
                return
            if self._suspects.are_tried:
                return
        for submission in self._rows.submissions:
            if submission.place is None:
                self._send(submission)

    def _send(self, submission: Submission) -> None:
        submission.place = self._deliver(submission.message())
        for branch in submission.branches.values():
            if branch.is_stalled:
                self._deliver(Stall(branch.number, True))

    def _give_up(self, branch: Branch) -> None:
        self._end(branch, Cancel(branch.number), "aborted")

    def _end(self, branch: Branch, message: ToEngine, reason: str) -> None:
        """Let the engine that has the row tell of its end; if none has, that is told here."""
        if branch.submission.place is not None and self._is_served:
            self._ends.append((self._deliver(message), _ended(branch, reason)))
        else:
            self._show([_ended(branch, reason)])

    def _tell(self, submission: Submission, message: ToEngine) -> None:
        """Send what only an engine need know that has the submission."""
        if submission.place is not None and self._is_served:
            self._deliver(message)


def _ended(branch: Branch, reason: str) -> Decision:
    return Decision(
        "finished",
        branch.number,
        0,
        time.monotonic(),
        {"reason": reason, "generated_tokens": len(branch.emitted)},
    )
