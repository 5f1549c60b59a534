"""The rows that the engine works at, by number, and who receives what it says about each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVarTuple

import structlog

from cadenza.service.cohort import Cohort
from cadenza.service.errors import UNEXPECTED
from cadenza.service.news import News
from cadenza.service.request_timer import TokenTimes
from cadenza.service.submissions import Branch, Submission
from cadenza.service.tap import Tap
from cadenza.wire.messages import Decision, PromptScores, RowLogprobs, Submit

Told = TypeVarTuple("Told")

logger = structlog.get_logger(__name__)

_PARKED = frozenset({"parked", "unparked"})  # kinds of decisions


class Row(Protocol):
    """Receives what the engine says about one row. Called on the loop; must not block.

    A row that raises is logged, cancelled, and told that it failed; no other row notices.
    """

    def on_admitted(self, cached_tokens: int) -> None:
        """The row got a seat, for the first time or again."""

    def on_preempted(self) -> None:
        """The row lost its seat."""

    def on_prompt_scores(self, scores: PromptScores) -> None:
        """Some tokens of its prompt are scored; all of them are before the row's first token."""

    def on_parked(self) -> None:
        """The row waits for credit."""

    def on_unparked(self) -> None:
        """The row goes on, as there is credit again."""

    @property
    def plain_tap(self) -> Tap | None:
        """What may take a token that comes without an end and without log-probabilities.

        What it leaves, and all where this is None, comes to `on_token`.
        """

    @property
    def times(self) -> TokenTimes:
        """Of all tokens, to be told of those that `plain_tap` has taken."""

    def tap_failed(self, error: Exception) -> None:
        """What `plain_tap` raised, about a token that then comes to `on_token`."""

    def on_token(
        self, token: int, finished: int, logprobs: RowLogprobs | None, now_s: float
    ) -> None:
        """One token, or an end (`wire.messages.Finished`), or both. Token -1 is none.

        `now_s`: on the monotonic clock, the same for all rows of a step.
        """

    def on_failed(self, message: str, *, retryable: bool) -> None:
        """The row ended without a result. Nothing follows."""


class Rows:
    """Rows that have not ended. A row that raises is given up, and no other notices."""

    def __init__(self, cancel: Callable[[Branch], None]) -> None:
        """`cancel` tells the engine that a row is given up."""
        self._branches: dict[int, Branch] = {}
        self._cancel = cancel
        self._cohort: Cohort | None = None  # of the step before

    def __len__(self) -> int:
        return len(self._branches)

    def __contains__(self, request: int) -> bool:
        return request in self._branches

    def __iter__(self) -> Iterator[Branch]:
        self.settle()
        return iter(tuple(self._branches.values()))

    def get(self, request: int) -> Branch | None:
        """The row of this number, unless it has ended."""
        self.settle()
        return self._branches.get(request)

    @property
    def submissions(self) -> Sequence[Submission]:
        """What the rows were submitted with, in order of arrival."""
        self.settle()
        return tuple({each.submission: None for each in self._branches.values()})

    def add(self, submit: Submit, rows: Sequence[Row]) -> Submission:
        """Rows that the engine knows by the numbers of the submit, in order."""
        submission = Submission(submit, rows)
        self._branches.update(submission.branches)
        return submission

    def remove(self, request: int) -> Branch | None:
        """Forget a row. None: there is none."""
        self._part()
        branch = self._branches.pop(request, None)
        if branch is not None:
            branch.submission.remove(branch)
        return branch

    def at_work(self, received: int) -> list[Submission]:
        """Whose rows have seats, or came after the engine had handled so many messages."""
        return [
            each
            for each in self.submissions
            if each.place is not None
            and (each.place > received or any(row.is_seated for row in each.branches.values()))
        ]

    def interruptions(self, reason: str, step_id: int) -> list[Decision]:
        """For the timelines of rows that the engine had, as it can tell no more."""
        now_s = time.monotonic()
        return [
            Decision(
                "interrupted",
                branch.number,
                step_id,
                now_s,
                {"reason": reason, "generated_tokens": len(branch.emitted)},
            )
            for branch in self
            if branch.submission.place is not None
        ]

    def interrupt(self) -> None:
        """The engine that worked at them is gone, and another one will go on."""
        for branch in self:
            branch.submission.place = None
            if branch.is_seated:
                branch.is_seated = False
                self._tell(branch.number, branch.row, branch.row.on_preempted)

    def hand_out(
        self, news: News, scores: Sequence[PromptScores], decisions: Sequence[Decision]
    ) -> None:
        """Tell the rows what a step brought them."""
        branches = self._branches
        for request, cached_tokens in news.admitted:
            if branch := branches.get(request):
                branch.is_seated = True
                self._tell(request, branch.row, branch.row.on_admitted, cached_tokens)
        for scored in scores:
            if branch := branches.get(scored.request):
                self._tell(scored.request, branch.row, branch.row.on_prompt_scores, scored)
        self._hand_out_tokens(news)
        # The tokens are of the pass before this step, which took seats away after it
        for request in news.preempted:
            if branch := branches.get(request):
                branch.is_seated = False
                self._tell(request, branch.row, branch.row.on_preempted)
        for decision in decisions:
            if decision.kind in _PARKED and (branch := branches.get(decision.request)):
                row = branch.row
                told = row.on_parked if decision.kind == "parked" else row.on_unparked
                self._tell(decision.request, row, told)

    def _hand_out_tokens(self, news: News) -> None:
        if not news.requests:
            return
        now_s, cohort = time.monotonic(), self._cohort
        if cohort is None or not cohort.fits(news):
            self._part()
            cohort = self._cohort = Cohort(news, self._branches)
        # Before the others, whose ends may be those of rows beside them
        others = cohort.hand_out(news, now_s)
        if self._cohort is not cohort:  # what a tap did has ended a row
            cohort.settle()
        for branch, place in others:
            number, token, finished = branch.number, news.tokens[place], news.finished[place]
            if number not in self._branches:
                continue
            if token >= 0:
                branch.emitted.append(token)
            if finished:
                self.remove(number)
            try:  # as `_tell`, but this may be done for every token
                branch.row.on_token(token, finished, news.logprobs.get(number), now_s)
            except Exception:
                self._drop(number, branch.row)

    def settle(self) -> None:
        """Let each row have what was handed out of it, which is written down by the step."""
        if self._cohort is not None:
            self._cohort.settle()

    def fail(self, request: int, message: str) -> None:
        """End a row, if there is one, which would fail again."""
        if branch := self.remove(request):
            _fail_row(branch.row, message, retryable=False)

    def fail_all(self, reason: str) -> None:
        """End all, as the engine is gone."""
        self._part()
        branches, self._branches = self._branches, {}
        for branch in branches.values():
            _fail_row(branch.row, reason, retryable=True)

    def _part(self) -> None:
        self.settle()
        self._cohort = None

    def _tell(self, request: int, row: Row, news: Callable[[*Told], None], *told: *Told) -> None:
        try:
            news(*told)
        except Exception:
            self._drop(request, row)

    def _drop(self, request: int, row: Row) -> None:
        """Give up a row that has just raised."""
        logger.exception("row_failed", request=request)
        if branch := self.remove(request):
            self._cancel(branch)
        _fail_row(row, UNEXPECTED, retryable=False)


def _fail_row(row: Row, message: str, *, retryable: bool) -> None:
    try:
        row.on_failed(message, retryable=retryable)
    except Exception:
        logger.exception("row_failed_to_fail", message=message)
