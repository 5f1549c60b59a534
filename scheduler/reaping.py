"""Reap: what an outcome means for the rows that were planned, and who has to go."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.columns import IntColumn, where
from cadenza.scheduler.decisions import Parked, Unparked
from cadenza.scheduler.plan import Int32Array, Int64Array, StepOutcome, StepPlan
from cadenza.scheduler.publishing import Publisher
from cadenza.scheduler.states import FinishReason, State
from cadenza.scheduler.stores import Stores
from cadenza.scheduler.table import Rows

Codes = npt.NDArray[np.uint8]

_REASONS = tuple(FinishReason)  # by code


class Departure(NamedTuple):
    """A choice that the front lets go."""

    request: int
    reason: FinishReason
    tokens_kept: int | None = None  # of its output; None: all


class Ended(NamedTuple):
    """Choices that got a token or ended by themselves. Parallel arrays."""

    requests: Int64Array
    tokens: Int32Array  # -1: none
    finished: Codes  # values of `FinishReason`
    samples: npt.NDArray[np.intp]  # index in the outcome; -1: of no sample

    @classmethod
    def nothing(cls) -> Ended:
        return cls.without_token([], FinishReason.NOT)

    @classmethod
    def without_token(cls, requests: list[int], reason: FinishReason) -> Ended:
        """These choices end now for one reason."""
        num = len(requests)
        return cls(
            requests=np.array(requests, dtype=np.int64),
            tokens=np.full(num, -1, dtype=np.int32),
            finished=np.full(num, reason.value, dtype=np.uint8),
            samples=np.full(num, -1, dtype=np.intp),
        )

    def and_then(self, other: Ended) -> Ended:
        """Both, one after the other."""
        return Ended(
            requests=np.concatenate((self.requests, other.requests)),
            tokens=np.concatenate((self.tokens, other.tokens)),
            finished=np.concatenate((self.finished, other.finished)),
            samples=np.concatenate((self.samples, other.samples)),
        )


class Reaper:
    """Applies outcomes: tokens in, full blocks published, prompts forked, ended rows out."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._publisher = Publisher(stores)
        self._eos = sorted(stores.config.eos_token_ids)

    def apply(self, plan: StepPlan, rows: Rows, outcome: StepOutcome, now_s: float) -> Ended:
        """Bring `rows`, in the order of `plan`, up to date; returns what happened to them."""
        table = self._stores.table
        table.computed_tokens[rows] += plan.num_new
        failed, tokens = outcome.failed, outcome.tokens
        any_failed = np.count_nonzero(failed) > 0
        if any_failed:
            self._publisher.publish(np.delete(rows, plan.samples[failed]))
        else:
            self._publisher.publish(rows)
        sampled = self._fork(rows[plan.samples])
        if any_failed:
            codes = np.full(len(sampled), FinishReason.FAILED, dtype=np.uint8)
            codes[~failed] = self._append(sampled[~failed], tokens[~failed])
            tokens = np.where(failed, np.int32(-1), tokens)
        else:
            codes = self._append(sampled, tokens)
        ended = Ended(
            requests=plan.sample_requests,
            tokens=tokens,
            finished=codes,
            samples=np.arange(len(sampled)),
        )
        if self._stores.decisions.observes("on_generated"):
            self._tell_generated(sampled[~failed], now_s)
        self._remove(sampled, codes, now_s)
        return ended

    def leave(self, departures: list[Departure], now_s: float) -> None:
        """Let choices go whose client left or found a stop string."""
        stores, table = self._stores, self._stores.table
        for request, reason, tokens_kept in departures:
            row = table.row_of(request)
            if row is None:
                continue
            if table.choices[row] > 1:
                stores.drop_choice(row, request, reason, now_s)
                continue
            if tokens_kept is not None:
                table.generated_tokens[row] = min(tokens_kept, table.generated_tokens[row])
            if reason is FinishReason.STOPPED:
                self._tell_policies(np.array([row]), now_s)
            stores.remove(np.array([row]), [reason], now_s)

    def expire(self, now_s: float) -> Ended:
        """End the rows whose deadline has passed, in whatever state they are."""
        table = self._stores.table
        late = where((table.deadline_s <= now_s) & (table.state != State.FREE))
        return self.end(late[np.argsort(table.arrival[late])], FinishReason.DEADLINE, now_s)

    def end(self, rows: Rows, reason: FinishReason, now_s: float) -> Ended:
        """End rows that are in no outcome."""
        requests = [
            choice for row in rows.tolist() for choice in self._stores.table.cold(row).choices
        ]
        self._tell_policies(rows, now_s)
        if len(rows):
            self._stores.remove(rows, [reason] * len(rows), now_s)
        return Ended.without_token(requests, reason)

    def park(self, now_s: float) -> None:
        """Park running rows whose reader has no credit left; let those go on that have some."""
        stores, table = self._stores, self._stores.table
        if not (stores.credits.num_limited or table.num_parked):
            return
        seated = table.seated()
        has_credit = stores.credits.cover(table.credit[seated], table.choices[seated])
        for row in seated[has_credit == table.parked[seated]].tolist():
            parks = not table.parked[row]
            table.move(row, State.PARKED if parks else State.RUNNING)
            if parks:
                table.pinned_until[row] = 0
            record = Parked if parks else Unparked
            for choice in table.cold(row).choices:
                stores.log.append(record(stores.totals.steps, now_s, choice))

    def _fork(self, sampled: Rows) -> Rows:
        """Rows in place of `sampled`, where a prompt's several choices have just got their own."""
        stores, table = self._stores, self._stores.table
        if not table.num_several:
            return sampled
        several = where(table.choices[sampled] > 1)
        if not len(several):
            return sampled
        sampled = sampled.copy()
        while len(several):
            row = int(sampled[several[0]])
            branches = table.fork(row)
            places, several = several[: len(branches)], several[len(branches) :]
            sampled[places] = branches
            for _ in branches[1:]:
                stores.pool.pin(table.blocks(row))
                stores.credits.hold(int(table.credit[row]))
        return sampled

    def _append(self, rows: Rows, tokens: Int32Array) -> Codes:
        """One more token for each row; returns for whom it is the last."""
        table, credits = self._stores.table, self._stores.credits
        generated = table.append_tokens(rows, tokens)
        self._stores.totals.generated_tokens += len(rows)
        if credits.num_limited:
            credits.spend(table.credit[rows])
        return self._finish_codes(rows, tokens, generated)

    def _finish_codes(self, rows: Rows, tokens: Int32Array, generated: IntColumn) -> Codes:
        table = self._stores.table
        codes = np.zeros(len(rows), dtype=np.uint8)  # FinishReason.NOT
        # The table has cut max_tokens to what the context has room for
        codes[generated >= table.max_tokens[rows]] = FinishReason.LENGTH
        picky = where(table.has_stop_ids[rows])
        if len(picky):
            stopped = (table.stop_token_ids[rows[picky]] == tokens[picky, None]).any(axis=1)
            codes[picky[stopped]] = FinishReason.STOP_TOKEN
        for eos in self._eos:
            at_end = where(tokens == eos)
            if len(at_end):
                codes[at_end[~table.ignore_eos[rows[at_end]]]] = FinishReason.EOS
        return codes

    def _remove(self, sampled: Rows, codes: Codes, now_s: float) -> None:
        over = where(codes)
        if not len(over):
            return
        stores, table = self._stores, self._stores.table
        rows, reasons = sampled[over], [_REASONS[code] for code in codes[over].tolist()]
        self._tell_policies(rows, now_s)
        for row, reason in zip(rows.tolist(), reasons, strict=True):
            if reason is FinishReason.FAILED:
                stores.pool.distrust(table.blocks(row))
        stores.remove(rows, reasons, now_s)

    def _tell_generated(self, rows: Rows, now_s: float) -> None:
        stores = self._stores
        if len(rows):
            stores.decisions.on_generated(stores.table.view(rows), stores.view(now_s))

    def _tell_policies(self, rows: Rows, now_s: float) -> None:
        stores = self._stores
        if len(rows) and stores.decisions.observes_finished:
            stores.decisions.on_finished(stores.table.view(rows), stores.view(now_s))
