"""The scheduler: five phases a step, and the only owner of the table and the pool.

Synchronous and sans-I/O: it reads no clock, starts no thread, and never waits. The engine's loop
feeds it outcomes and gets plans; tests do the same with a fake runner.
"""

from __future__ import annotations

import numpy as np
import structlog

from cadenza.policies.decisions import Decisions
from cadenza.scheduler.admission import Admission
from cadenza.scheduler.arrivals import Arrivals
from cadenza.scheduler.assembly import assemble
from cadenza.scheduler.budget import Budget, measure, place_running
from cadenza.scheduler.checks import check_invariants
from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.costs import CostModel
from cadenza.scheduler.credits import UNLIMITED
from cadenza.scheduler.decisions import Arrived, Decision, RefusedArrival, Stalled
from cadenza.scheduler.plan import StepOutcome, StepPlan
from cadenza.scheduler.planning import PlanBuilder
from cadenza.scheduler.preemption import Preemption
from cadenza.scheduler.prefills import Prefills
from cadenza.scheduler.reaping import Departure, Ended, Reaper
from cadenza.scheduler.report import Statistics, StepReport, StepResult
from cadenza.scheduler.request import Arrival, Refused
from cadenza.scheduler.states import FinishReason
from cadenza.scheduler.stores import Stores
from cadenza.scheduler.table import Rows

_log = structlog.get_logger(__name__)

_NEVER = float("inf")


class Scheduler:
    """Decides what the next forward pass computes, and who holds which blocks."""

    def __init__(
        self, config: SchedulerConfig, decisions: Decisions, costs: CostModel | None = None
    ) -> None:
        self.config = config
        self._stores = Stores(config, decisions, costs or CostModel())
        self._arrivals = Arrivals(self._stores)
        self._reaper = Reaper(self._stores)
        self._preemption = Preemption(self._stores)
        self._admission = Admission(self._stores, self._preemption)
        self._prefills = Prefills()
        self._leaving: list[Departure] = []  # for the next reap
        self._forced: list[tuple[int, bool]] = []  # to preempt in the next step; True: swap
        self._planned: tuple[StepPlan, Rows] | None = None
        self._earliest_deadline_s = _NEVER  # no deadline is earlier; one so early may be gone
        self._idle_steps = 0  # steps in a row without any progress
        self._faults_before = 0  # of policies, less what the present ones had when they came

    @property
    def has_unfinished(self) -> bool:
        """Whether anything is left to do, an outcome to reap or a cancel to apply included."""
        return bool(len(self._stores.table) or self._planned or self._leaving)

    @property
    def has_work(self) -> bool:
        """Whether a step would do something now; not if everything left waits for credit."""
        if self._planned or self._leaving:
            return True
        table, credits = self._stores.table, self._stores.credits
        if not credits.num_limited:
            return bool(len(table))
        return bool(credits.cover(table.credit, table.choices)[table.choices > 0].any())

    @property
    def next_deadline_s(self) -> float:
        """No deadline passes before this time; +inf if there is none."""
        return self._earliest_deadline_s

    def add(self, arrival: Arrival, now_s: float) -> None:
        """Take a request; it waits from now on.

        Raises:
            Refused: it could not run even alone, or one of its numbers is in use.
        """
        stores = self._stores
        try:
            arrival.check(
                max_model_len=self.config.max_model_len, max_num_seqs=self.config.max_num_seqs
            )
            for request in arrival.requests:
                if request in stores.table:
                    raise Refused(f"request {request} is here already")
            shared = arrival.shares_credit_with
            if shared is not None and shared not in stores.table:
                raise Refused(f"request {shared}, whose credit it would share, is not here")
        except Refused as refusal:
            when = stores.totals.steps, now_s, arrival.request
            stores.log.append(RefusedArrival(*when, str(refusal)))
            raise
        row = stores.table.add(arrival, now_s)
        stores.table.credit[row] = self._credit_of(arrival)
        stores.follow(row)
        self._arrivals.add(row)
        self._earliest_deadline_s = min(self._earliest_deadline_s, arrival.deadline_s)
        cached = int(stores.table.cached_tokens[row])
        for request in arrival.requests:
            when = stores.totals.steps, now_s, request
            stores.log.append(Arrived(*when, len(arrival.prompt), cached))

    def drop(self, request: int) -> None:
        """Let a choice go because its client is gone.

        Its blocks return in the reap of the next step. Idempotent; unknown requests are ignored.
        """
        self._leave(Departure(request, FinishReason.ABORTED))

    def finish(self, request: int, tokens_kept: int | None = None) -> None:
        """Let a choice go because the front found a stop string: a normal end, otherwise `drop`.

        `tokens_kept` is its true length, which policies and the log learn; None: as generated.
        """
        self._leave(Departure(request, FinishReason.STOPPED, tokens_kept))

    def grant(self, request: int, tokens: int) -> None:
        """The reader takes `tokens` more, over all choices that arrived with the request.

        The request itself may have ended, as long as one of the others goes on.
        """
        self._stores.credits.grant(self._stores.credits.slot_of(request), tokens)

    def stall(self, request: int, *, is_stalled: bool) -> None:
        """The reader takes nothing for now, or does again. With credit it is that which says so.

        Until their prompt is computed, all choices of a request stall together.
        """
        table, credits = self._stores.table, self._stores.credits
        row = table.row_of(request)
        if row is None:
            return
        slot = int(table.credit[row])
        if is_stalled and slot == UNLIMITED:
            table.credit[row] = credits.open(0, in_flight=int(table.choices[row]))
        elif not is_stalled and slot != UNLIMITED and not credits.is_granted(slot):
            table.credit[row] = UNLIMITED
            credits.release(slot)

    def reprioritise(self, request: int, priority: int) -> None:
        """Give the request another priority, as an `Arrival` has it.

        Until their prompt is computed, all choices of a request share one priority.
        """
        row = self._stores.table.row_of(request)
        if row is not None:
            self._stores.table.priority[row] = priority

    def set_deadline(self, request: int, deadline_s: float) -> None:
        """End the request at another time; +inf: never.

        Until their prompt is computed, all choices of a request share one deadline.
        """
        row = self._stores.table.row_of(request)
        if row is not None:
            self._stores.table.deadline_s[row] = deadline_s
            self._earliest_deadline_s = min(self._earliest_deadline_s, deadline_s)

    def preempt(self, request: int, *, swap: bool) -> None:
        """Take the request's seat in the next step, whatever policies say; for tests."""
        self._forced.append((request, swap))

    def use(self, decisions: Decisions, *, takes_over: bool = True) -> None:
        """Let other policies decide, and be told, from the next step on.

        Newcomers among them that listen to `on_arrived` are told there of everybody who is here, as
        resumed.

        Args:
            decisions: whose policies are asked.
            takes_over: False: a policy has come back, or a shadow has changed, which is nothing to
                all the others; they see the column `resumed` as before.
        """
        self._faults_before += self._stores.decisions.faults - decisions.faults
        self._stores.decisions = decisions
        self._arrivals.introduce(takes_over=takes_over)

    def leave_free(self, share: float) -> None:
        """Let admissions leave this share of the pool free from the next step on."""
        self._stores.leave_free(share)

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix. Running requests keep their blocks."""
        self._stores.pool.reset_cache()

    def timeline(self, request: int) -> list[Decision]:
        """What the bounded log still knows of one request, oldest first."""
        return self._stores.log.timeline(request)

    def step(self, now_s: float, outcome: StepOutcome | None = None) -> StepResult:
        """Run one iteration: apply the last plan's outcome, then plan the next forward pass.

        Args:
            now_s: monotonic seconds.
            outcome: what the runner made of the plan that the last step returned; required exactly
                when it returned one.
        """
        ended = self._reap(outcome, now_s)
        plan = self._new_plan(now_s)
        budget = self._budget(plan)
        self._admit(plan, budget)
        self._preempt(plan, budget)
        return self._assemble(plan, ended)

    def _reap(self, outcome: StepOutcome | None, now_s: float) -> Ended:
        """Apply the outcome, then let those go that have to; their blocks return at once."""
        stores = self._stores
        stores.totals.steps += 1
        stores.host.settle()
        self._arrivals.tell(now_s)
        ended = self._apply(outcome, now_s) if outcome is not None else Ended.nothing()
        assert self._planned is None, "a plan was never given its outcome"
        if self._leaving:
            self._idle_steps = 0
        self._reaper.leave(self._leaving, now_s)
        self._leaving.clear()
        if self._earliest_deadline_s <= now_s:
            ended = ended.and_then(self._reaper.expire(now_s))
            self._earliest_deadline_s = stores.table.earliest_deadline_s()
        if self._idle_steps > self.config.stall_steps:
            ended = ended.and_then(self._fail_head(now_s))
        self._reaper.park(now_s)
        return ended

    def _apply(self, outcome: StepOutcome, now_s: float) -> Ended:
        """What the runner made of the last plan goes into the table."""
        assert self._planned is not None, "an outcome without a plan"
        plan, rows = self._planned
        assert outcome.step_id == plan.step_id, "an outcome of another plan"
        self._planned = None
        ended = self._reaper.apply(plan, rows, outcome, now_s)
        self._stores.costs.observe(plan, outcome.times)
        self._stores.totals.computed_tokens += plan.num_tokens
        return ended

    def _budget(self, plan: PlanBuilder) -> Budget:
        """What is left beside the blocks that running rows write."""
        for request, swap in self._forced:
            row = self._stores.table.row_of(request)
            if row is not None:
                self._preemption.force(plan, row, swap)
        self._forced.clear()
        return measure(self._stores)

    def _admit(self, plan: PlanBuilder, budget: Budget) -> None:
        """Running rows first; then waiting rows while seats, tokens and blocks last."""
        if budget.spare >= 0:
            place_running(self._stores, plan, budget.running, budget.growth)
            self._admission.run(plan, budget)

    def _preempt(self, plan: PlanBuilder, budget: Budget) -> None:
        """Clear the deficit with just enough victims, then place who is left."""
        if budget.spare < 0:
            self._preemption.clear_deficit(plan, budget)
        if plan.unseated or plan.seated:
            self._tell_seats(plan)

    def _assemble(self, plan: PlanBuilder, ended: Ended) -> StepResult:
        stores = self._stores
        rows, counts = plan.rows_and_counts(self._prefills, stores.table.admission)
        decisions = stores.log.drain()
        report = StepReport(
            requests=ended.requests,
            tokens=ended.tokens,
            finished=ended.finished,
            samples=ended.samples,
            admitted=np.array(plan.admitted, dtype=np.int64),
            admitted_cached=np.array(plan.cached, dtype=np.int32),
            preempted=np.array(plan.preempted, dtype=np.int64),
            decisions=decisions,
        )
        if not (len(rows) or len(plan.copies)):
            self._idle_steps = 0 if decisions or not self.has_work else self._idle_steps + 1
            return StepResult(report, None)
        self._idle_steps = 0
        stores.table.last_run_s[rows] = plan.now_s
        step_plan = assemble(stores.table, plan, rows, counts)
        self._planned = (step_plan, rows)
        return StepResult(report, step_plan)

    def _new_plan(self, now_s: float) -> PlanBuilder:
        self._preemption.begin()
        stores, chunk = self._stores, None
        stores.token_budget = self.config.max_num_batched_tokens
        if stores.decisions.plans_budget and len(stores.table):
            seated, waiting = stores.table.seated(), stores.table.waiting()
            budget = stores.decisions.plan_budget(
                stores.table.view(seated), stores.table.view(waiting), stores.view(now_s)
            )
            stores.token_budget, chunk = budget.tokens, budget.prefill_chunk
        stores.rank_evictions(now_s)
        return PlanBuilder(
            step_id=stores.totals.steps,
            now_s=now_s,
            token_budget=stores.token_budget,
            block_size=self.config.block_size,
            prefill_chunk=chunk,
        )

    def _tell_seats(self, plan: PlanBuilder) -> None:
        """Tell policies who lost a seat in this step, who got one, and who of them came back."""
        stores = self._stores
        tell, table = stores.decisions, stores.table
        seated = np.array(plan.seated, dtype=np.intp)
        if plan.unseated and tell.observes("on_preempted"):
            unseated = np.array(plan.unseated, dtype=np.intp)
            tell.on_preempted(table.view(unseated), stores.view(plan.now_s))
        if len(seated) and tell.observes("on_admitted"):
            tell.on_admitted(table.view(seated), stores.view(plan.now_s))
        if len(seated) and tell.observes("on_resumed"):
            back = seated[table.preemptions[seated] > 0]
            if len(back):
                tell.on_resumed(table.view(back), stores.view(plan.now_s))

    def _credit_of(self, arrival: Arrival) -> int:
        credits = self._stores.credits
        if arrival.shares_credit_with is None:
            return credits.open(arrival.credit, arrival.requests)
        return credits.share(arrival.shares_credit_with, arrival.requests)

    def _leave(self, departure: Departure) -> None:
        if departure.request in self._stores.table:
            self._leaving.append(departure)

    def _fail_head(self, now_s: float) -> Ended:
        """The watchdog: nothing moved for too long, so the first in line fails and is told."""
        stores, table = self._stores, self._stores.table
        idle_steps, self._idle_steps = self._idle_steps, 0
        rows = np.flatnonzero(table.choices)
        able = rows[stores.credits.cover(table.credit[rows], table.choices[rows])]
        if not len(able):  # they left in the reap of this very step
            return Ended.nothing()
        row = int(able[table.arrival[able].argmin()])
        columns = {name: column[row].item() for name, column in table.by_name.items()}
        _log.error("no step made progress; failing the head", **columns, state_=self.statistics())
        for choice in table.cold(row).choices:
            stores.log.append(Stalled(stores.totals.steps, now_s, choice, idle_steps))
        return self._reaper.end(np.array([row]), FinishReason.FAILED, now_s)

    def statistics(self) -> Statistics:
        """The figures of this moment."""
        stores, totals = self._stores, self._stores.totals
        counts = stores.pool.counts
        running = self.config.max_num_seqs - stores.table.free_seats
        return Statistics(
            running=running,
            waiting=len(stores.table) - running,
            parked=stores.table.num_parked,
            swapped=stores.table.num_swapped,
            at_rest=not self.has_work,
            free_blocks=counts.free,
            cached_blocks=counts.cached,
            total_blocks=self.config.num_blocks,
            free_host_blocks=stores.host.num_unused,
            total_host_blocks=self.config.num_host_blocks,
            steps=totals.steps,
            preemptions=totals.preemptions,
            swaps=totals.swaps,
            computed_tokens=totals.computed_tokens,
            recomputed_tokens=totals.recomputed_tokens,
            generated_tokens=totals.generated_tokens,
            prefix_queries=totals.prefix_queries,
            prefix_hits=totals.prefix_hits,
            decisions_lost=stores.log.lost,
            policy_faults=self._faults_before + stores.decisions.faults,
        )

    def check_invariants(self) -> None:
        """Recount everything; raises AssertionError where the state contradicts itself."""
        check_invariants(self._stores)
