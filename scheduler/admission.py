"""Admission: who of the waiting rows gets a seat, in which order, and with which blocks."""

from __future__ import annotations

from typing import Literal

import numpy as np

from cadenza.policies.views import RequestColumns, StepView
from cadenza.scheduler.budget import Budget, promised_to
from cadenza.scheduler.candidates import Candidate, Candidates, Entry
from cadenza.scheduler.columns import where
from cadenza.scheduler.decisions import Admitted, HostCopyDropped, Resumed, Starving
from cadenza.scheduler.planning import PlanBuilder
from cadenza.scheduler.preemption import Lack, Preemption
from cadenza.scheduler.request import HostCopy
from cadenza.scheduler.seating import Seating
from cadenza.scheduler.states import State
from cadenza.scheduler.stores import Stores
from cadenza.scheduler.table import Rows
from cadenza.scheduler.turns import WHOLE, Turns
from cadenza.scheduler.vanguard import vanguard
from cadenza.scheduler.victims import Shortage
from cadenza.scheduler.waiting import later_admissions, lowest

PASSABLE = 16  # candidates beyond those for whom there are seats, as some may be passed over
PINNED_TOKENS = 16  # that a row admitted as starving generates before it is a victim like others


_NOBODY: Rows = np.empty(0, dtype=np.intp)


# What becomes of a candidate. One that is passed over lacks tokens of this step, its reader's
# credit, or seats for all of its choices, and others may still enter (until it starves, or many
# choices would wait for ever). One that blocks lacks room, and nobody behind it may take what there
# is.
_Verdict = Literal["enters", "passed over", "blocks"]


class Admission:
    """Seats waiting rows. One instance a scheduler."""

    def __init__(self, stores: Stores, preemption: Preemption) -> None:
        self._stores = stores
        self._preemption = preemption
        self._turns = Turns()
        self._seating = Seating(stores)
        self._fresh: dict[int, list[int]] = {}  # arrivals that entered in this step, by their turn

    def run(self, plan: PlanBuilder, budget: Budget) -> None:
        """Admit while seats, tokens and blocks last, beside the rows placed already."""
        most = self._obtainable_seats()
        waiting = self._with_credit(self._stores.table.waiting()) if most else _NOBODY
        if not len(waiting):
            return
        stores, table = self._stores, self._stores.table
        view = stores.view(plan.now_s)
        columns = table.view(waiting)
        candidates = self._order(waiting, columns, most + PASSABLE, view, plan)
        seated = table.view(table.seated())
        kept = stores.decisions.reserve_blocks(seated, table.view(candidates.rows), view)
        candidates.keep = kept.tolist()
        self._fresh.clear()
        num = self._admit_together(plan, candidates, budget.promised)
        if num < len(candidates) and not self._is_over(plan):
            self._admit_singly(plan, budget, candidates, num)
        self._seating.seat(plan)
        self._count_overtakes(waiting, columns)

    def _admit_together(self, plan: PlanBuilder, candidates: Candidates, promised: int) -> int:
        """Admit the first candidates, as far as they lack nothing; returns how many."""
        group = vanguard(self._stores, plan, candidates, promised)
        if group:
            self._seating.enter_together(plan, group)
        starving = candidates.starving[: len(group)].tolist()
        for rank, (candidate, entry) in enumerate(group):
            self._tell(plan, candidate, entry, rank, starving[rank])
        return len(group)

    def _admit_singly(
        self, plan: PlanBuilder, budget: Budget, candidates: Candidates, first: int
    ) -> None:
        """Admit who still may enter of those from `first` on."""
        stores = self._stores
        keep, promised = candidates.keep, budget.promised
        kept = keep[first]
        for rank, candidate in enumerate(candidates.since(first), first):
            if self._is_over(plan):
                break
            entry = self._entry(candidate, plan)
            # What those want kept who were passed over is not held against it
            wanted = max(0, kept + keep[rank + 1] - keep[rank])
            needs = bool(candidates.starving[rank])
            lack = self._lack(plan, candidate, entry, wanted, promised + self._seating.promised)
            verdict = self._judge(plan, budget, candidate, entry, lack, needs)
            if verdict == "blocks":
                break
            if verdict == "passed over":
                continue
            if lack is not None:  # others may have left, with what they were promised
                promised = promised_to(stores)
            self._seating.enter(plan, candidate, entry, promised + self._seating.promised)
            kept = wanted
            self._tell(plan, candidate, entry, rank, needs)

    def _is_over(self, plan: PlanBuilder) -> bool:
        """Whether nobody else can enter in this step."""
        return plan.is_full or not (self._stores.table.free_seats or self._obtainable_seats())

    def _judge(
        self,
        plan: PlanBuilder,
        budget: Budget,
        candidate: Candidate,
        entry: Entry,
        lack: Lack | None,
        starving: bool,
    ) -> _Verdict:
        """Whether the row enters, and if not, whether those behind it still may."""
        table, credits = self._stores.table, self._stores.credits
        if credits.num_limited:
            slot = int(table.credit[candidate.row])
            if not credits.has_spare(slot, candidate.choices):
                return "passed over"
        has_tokens = plan.has_room_for(candidate.num_tokens - entry.computed)
        if lack is None:
            if has_tokens:
                return "enters"
            return "blocks" if starving else "passed over"
        row, found = candidate.row, entry.found
        if has_tokens and self._preemption.make_room(plan, budget, row, lack, found):
            return "enters"
        lacks_only_seats = lack.whole.blocks <= 0 and table.free_seats > 0
        return "passed over" if lacks_only_seats and not starving else "blocks"

    def _with_credit(self, rows: Rows) -> Rows:
        credits, table = self._stores.credits, self._stores.table
        if not credits.num_limited:
            return rows
        return rows[credits.spare(table.credit[rows], table.choices[rows])]

    def _obtainable_seats(self) -> int:
        """Seats that are free, or may become so for a candidate."""
        table = self._stores.table
        parked = table.seated()[table.parked[table.seated()]] if table.num_parked else ()
        displaced = 1 if self._stores.decisions.may_displace else 0
        return table.free_seats + len(parked) + displaced

    def _order(
        self, waiting: Rows, columns: RequestColumns, most: int, view: StepView, plan: PlanBuilder
    ) -> Candidates:
        """Who may enter, `most` at most, in order.

        A policy may keep requests out with +inf, but not all of them while nothing runs.
        """
        decisions = self._stores.decisions
        starving = decisions.guard_starvation(columns, view)
        scores = decisions.order_admissions(columns, view)
        arrivals, needy = columns.arrival, where(starving)
        if plan.is_empty and not len(needy) and scores.min() == np.inf:
            scores = arrivals.astype(np.float64)
        if not len(needy):
            order = lowest(scores, arrivals, most)
            if scores[order[-1]] < np.inf:  # the common case: none of them is kept out
                return Candidates(self._stores.table, waiting[order], starving[order])
        tenants = None
        if len(needy):
            self._tell_starving(waiting.take(needy), plan)
            tenants = columns.tenant if decisions.overtakes_within_tenant else None
        order = self._turns.order(scores, arrivals, starving, most, tenants)
        return Candidates(self._stores.table, waiting[order], starving[order])

    def _entry(self, candidate: Candidate, plan: PlanBuilder) -> Entry:
        """What the row finds now. A host copy that has become useless is dropped."""
        row, host = candidate.row, candidate.cold.host
        if host is not None:
            entry = self._from_host(row, host)
            if entry is not None:
                return entry
            self._drop_host_copy(row, host, plan)
        found = self._stores.prefixes.found(row)
        return Entry.warm(found, self._stores.config.block_size)

    def _from_host(self, row: int, host: HostCopy) -> Entry | None:
        """Blocks that are still published need no copy; None: a shared one is gone."""
        found = self._stores.findable(row, host.computed)
        if host.shared and host.shared[-1] >= len(found):
            return None
        copied = [(index, block) for index, block in host.copied if index >= len(found)]
        return Entry(found, copied, host.computed, from_host=True)

    def _drop_host_copy(self, row: int, host: HostCopy, plan: PlanBuilder) -> None:
        stores, table = self._stores, self._stores.table
        cold = table.cold(row)
        stores.host.release(block for _, block in host.copied)
        cold.host, cold.lost_tokens = None, host.computed
        table.move(row, State.PREEMPTED)
        stores.follow(row)
        for choice in cold.choices:
            stores.log.append(HostCopyDropped(plan.step_id, plan.now_s, choice))

    def _lack(
        self, plan: PlanBuilder, candidate: Candidate, entry: Entry, keep: int, promised: int
    ) -> Lack | None:
        """What the row lacks to hold all its known tokens, with `keep` and the watermark left.

        Both are waived while nothing runs, or a large request would wait for ever. None: nothing.
        """
        stores = self._stores
        left = stores.pool.num_available - candidate.blocks
        if len(entry.found):  # what others hold costs nothing
            left += len(entry.found) - stores.pool.num_unheld(entry.found)
        seats = candidate.choices - stores.table.free_seats
        spared = stores.watermark + promised + candidate.tails
        if plan.is_empty:
            keep = spared = 0
        if spared + keep <= left and seats <= 0:
            return None
        return Lack(Shortage(spared + keep - left, seats), Shortage(spared - left, seats))

    def _tell(
        self, plan: PlanBuilder, candidate: Candidate, entry: Entry, rank: int, starving: bool
    ) -> None:
        """Count the admission and log it; a row that was starving is pinned for a while."""
        stores, table, row = self._stores, self._stores.table, candidate.row
        turn = self._turn_of(candidate)
        self._turns.count(turn, starving=starving)
        if candidate.admission < 0:
            self._fresh.setdefault(turn, []).append(candidate.arrival)
        if starving:
            table.pinned_until[row] = table.generated_tokens[row] + PINNED_TOKENS
        wait_s = plan.now_s - candidate.waits_since_s
        for choice in candidate.cold.choices:
            when = plan.step_id, plan.now_s, choice
            stores.log.append(
                Resumed(*when, rank, wait_s, entry.computed, entry.from_host)
                if candidate.admission >= 0
                else Admitted(*when, rank, wait_s, entry.computed, starving)
            )

    def _tell_starving(self, rows: Rows, plan: PlanBuilder) -> None:
        stores, table = self._stores, self._stores.table
        known = table.starving.take(rows)
        for row in () if known.all() else rows[~known].tolist():
            table.starving[row] = True
            wait_s = plan.now_s - float(table.waits_since_s[row])
            for choice in table.cold(row).choices:
                stores.log.append(
                    Starving(plan.step_id, plan.now_s, choice, int(table.overtakes[row]), wait_s)
                )

    def _turn_of(self, candidate: Candidate) -> int:
        """With whom the candidate takes turns: its tenant, or everybody."""
        if self._stores.decisions.overtakes_within_tenant:
            return int(self._stores.table.tenant[candidate.row])
        return WHOLE

    def _count_overtakes(self, rows: Rows, columns: RequestColumns) -> None:
        """Later arrivals that were admitted for the first time ahead of those who still wait."""
        table = self._stores.table
        for turn, admitted in self._fresh.items():
            earlier = columns.arrival < max(admitted)
            if turn != WHOLE:
                earlier &= columns.tenant == turn
            if np.count_nonzero(earlier) < len(admitted):  # they alone: those who enter
                continue
            behind = rows.take(where(earlier))
            waits = table.waits.take(behind)
            if not waits.all():  # but some entered, too
                behind = behind[waits]
            alone = len(admitted) == 1  # as mostly, and then it is one for each of them
            table.overtakes[behind] += (
                1 if alone else later_admissions(table.arrival[behind], admitted)
            )
