"""The rows that the engine works at, by number, and who receives what it says about each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVarTuple

import structlog

from cadenza.service.errors import UNEXPECTED
from cadenza.service.news import News
from cadenza.wire.messages import Decision, PromptScores, RowLogprobs

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

    def __init__(self, cancel: Callable[[int], None]) -> None:
        """`cancel` tells the engine that a row is given up."""
        self._rows: dict[int, Row] = {}
        self._cancel = cancel

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, request: int) -> bool:
        return request in self._rows

    def add(self, first: int, rows: Sequence[Row]) -> None:
        """Rows that the engine knows by `first` and the numbers after it."""
        self._rows.update(enumerate(rows, first))

    def remove(self, request: int) -> bool:
        """Forget a row. False: there is none."""
        return self._rows.pop(request, None) is not None

    def hand_out(
        self, news: News, scores: Sequence[PromptScores], decisions: Sequence[Decision]
    ) -> None:
        """Tell the rows what a step brought them."""
        rows = self._rows
        for request, cached_tokens in news.admitted:
            if row := rows.get(request):
                self._tell(request, row, row.on_admitted, cached_tokens)
        for scored in scores:
            if row := rows.get(scored.request):
                self._tell(scored.request, row, row.on_prompt_scores, scored)
        self._hand_out_tokens(news)
        # The tokens are of the pass before this step, which took seats away after it
        for request in news.preempted:
            if row := rows.get(request):
                self._tell(request, row, row.on_preempted)
        for decision in decisions:
            if decision.kind in _PARKED and (row := rows.get(decision.request)):
                told = row.on_parked if decision.kind == "parked" else row.on_unparked
                self._tell(decision.request, row, told)

    def _hand_out_tokens(self, news: News) -> None:
        rows, logprobs, now_s = self._rows, news.logprobs, time.monotonic()
        columns = zip(news.requests, news.tokens, news.finished, strict=True)
        for request, token, finished in columns:
            row = rows.pop(request, None) if finished else rows.get(request)
            if row is not None:
                try:  # as `_tell`, but this is done for every token
                    row.on_token(
                        token, finished, logprobs.get(request) if logprobs else None, now_s
                    )
                except Exception:
                    self._drop(request, row)

    def fail(self, request: int, message: str) -> None:
        """End a row, if there is one, which would fail again."""
        if row := self._rows.pop(request, None):
            _fail_row(row, message, retryable=False)

    def fail_all(self, reason: str) -> None:
        """End all, as the engine is gone."""
        rows, self._rows = self._rows, {}
        for row in rows.values():
            _fail_row(row, reason, retryable=True)

    def _tell(self, request: int, row: Row, news: Callable[[*Told], None], *told: *Told) -> None:
        try:
            news(*told)
        except Exception:
            self._drop(request, row)

    def _drop(self, request: int, row: Row) -> None:
        """Give up a row that has just raised."""
        logger.exception("row_failed", request=request)
        if self.remove(request):
            self._cancel(request)
        _fail_row(row, UNEXPECTED, retryable=False)


def _fail_row(row: Row, message: str, *, retryable: bool) -> None:
    try:
        row.on_failed(message, retryable=retryable)
    except Exception:
        logger.exception("row_failed_to_fail", message=message)
