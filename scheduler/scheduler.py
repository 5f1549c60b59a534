"""The scheduler: five phases a step, and the only owner of the table and the pool.

Synchronous and sans-I/O: it reads no clock, starts no thread, and never waits. The engine's loop
feeds it outcomes and gets plans; tests do the same with a fake runner.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cadenza.policies.decisions import Decisions
from cadenza.policies.views import PreemptionCosts, StepView
from cadenza.scheduler.assembly import assemble
from cadenza.scheduler.blocks import BlockPool
from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.plan import BoolArray, StepOutcome, StepPlan
from cadenza.scheduler.planning import Counts, PlanBuilder
from cadenza.scheduler.prefix import BlockKey, extend_keys
from cadenza.scheduler.reaping import Ended, Reaper
from cadenza.scheduler.report import Statistics, StepReport, StepResult
from cadenza.scheduler.request import Arrival, Refused
from cadenza.scheduler.states import State
from cadenza.scheduler.table import RequestTable, Rows
from cadenza.scheduler.victims import just_enough
from cadenza.scheduler.waiting import NORMAL_PER_STARVING, interleave, later_admissions


class _Budget(NamedTuple):
    """What the running rows need before anybody else may have anything."""

    running: Rows  # earliest admission first
    growth: Counts  # blocks each of them is about to write beyond those it holds
    spare: int  # available blocks less growth; negative: over-committed


class Scheduler:
    """Decides what the next forward pass computes, and who holds which blocks."""

    def __init__(self, config: SchedulerConfig, decisions: Decisions) -> None:
        self.config = config
        self._decisions = decisions
        self._pool = BlockPool(config.num_blocks)
        self._table = RequestTable(
            num_seats=config.max_num_seqs,
            max_model_len=config.max_model_len,
            block_size=config.block_size,
        )
        self._reaper = Reaper(config, self._table, self._pool)
        self._watermark = int(np.ceil(config.watermark * config.num_blocks))
        self._leaving: list[int] = []  # requests to drop in the next reap
        self._planned: tuple[StepPlan, Rows] | None = None
        self._normal_since_starving = NORMAL_PER_STARVING
        self._steps = self._preemptions = 0
        self._computed_tokens = self._generated_tokens = 0
        self._prefix_queries = self._prefix_hits = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether anything is left to do, an outcome to reap or a cancel to apply included."""
        return bool(len(self._table) or self._planned or self._leaving)

    def add(self, arrival: Arrival, now_s: float) -> None:
        """Take a request; it waits from now on.

        Raises:
            Refused: it could not run even alone, or its id is in use.
        """
        arrival.check(self.config.max_model_len)
        if arrival.request in self._table:
            raise Refused(f"request {arrival.request} is here already")
        row = self._table.add(arrival, now_s)
        self._keys(row)  # hashed now, so that no step has to

    def drop(self, request: int) -> None:
        """Let a request go: its client is gone, or found a stop string.

        Its blocks return in the reap of the next step. Idempotent; unknown requests are ignored.
        """
        if request in self._table:
            self._leaving.append(request)

    def step(self, now_s: float, outcome: StepOutcome | None = None) -> StepResult:
        """Run one iteration: apply the last plan's outcome, then plan the next forward pass.

        Args:
            now_s: monotonic seconds.
            outcome: what the runner made of the plan that the last step returned; required exactly
                when it returned one.
        """
        self._steps += 1
        ended = self._reap(outcome)
        plan = PlanBuilder(
            step_id=self._steps,
            token_budget=self.config.max_num_batched_tokens,
            block_size=self.config.block_size,
        )
        budget = self._budget()
        self._admit(plan, budget, now_s)
        self._preempt(plan, budget, now_s)
        return self._assemble(plan, ended)

    def _reap(self, outcome: StepOutcome | None) -> Ended:
        """Apply the outcome, then let those go whose client left; their blocks return at once."""
        ended = Ended.nothing()
        if outcome is not None:
            assert self._planned is not None, "an outcome without a plan"
            plan, rows = self._planned
            assert outcome.step_id == plan.step_id, "an outcome of another plan"
            self._planned = None
            ended = self._reaper.apply(plan, rows, outcome)
            self._computed_tokens += plan.num_tokens
            self._generated_tokens += int((ended.tokens >= 0).sum())
        assert self._planned is None, "a plan was never given its outcome"
        for request in self._leaving:
            row = self._table.row_of(request)
            if row is not None:
                self._reaper.remove(row)
        self._leaving.clear()
        return ended

    def _budget(self) -> _Budget:
        table, size = self._table, self.config.block_size
        running = table.running()
        # A prefilling row got the blocks of its whole prompt when it was admitted; only a row that
        # decodes over the edge of its last block needs another.
        grows = table.num_tokens[running] > table.blocks_held[running] * size
        growth = grows.astype(np.int64)
        return _Budget(running, growth, self._pool.num_available - int(growth.sum()))

    def _view(self, now_s: float, plan: PlanBuilder) -> StepView:
        return StepView(
            step_id=self._steps,
            now_s=now_s,
            free_blocks=self._pool.num_available,
            total_blocks=self.config.num_blocks,
            block_size=self.config.block_size,
            free_seats=self._table.free_seats,
            token_budget=plan.token_budget,
            preemptions=self._preemptions,
        )

    def _admit(self, plan: PlanBuilder, budget: _Budget, now_s: float) -> None:
        """Running rows first; then waiting rows while seats, tokens and blocks last."""
        if budget.spare < 0:
            return
        self._place_running(plan, budget.running, budget.growth)
        waiting = self._table.waiting()
        if not (len(waiting) and self._table.free_seats):
            return
        view = self._view(now_s, plan)
        candidates, starving = self._candidates(waiting, view, idle=plan.is_empty)
        keep = self._decisions.reserve_blocks(
            self._table.view(budget.running), self._table.view(candidates), view
        )
        fresh: list[int] = []
        for index, row in enumerate(candidates):
            if plan.is_full:
                break
            hits = self._match(int(row))
            if not self._has_blocks(plan, int(row), hits, int(keep[index + 1])):
                break
            remaining = int(self._table.num_tokens[row]) - len(hits) * self.config.block_size
            if not plan.has_room_for(remaining):
                continue
            is_fresh = bool(self._table.state[row] == State.WAITING.value)
            self._seat(plan, int(row), hits)
            self._normal_since_starving = 0 if starving[index] else self._normal_since_starving + 1
            if is_fresh:
                fresh.append(int(self._table.arrival[row]))
        self._count_overtakes(waiting, fresh)

    def _candidates(self, waiting: Rows, view: StepView, *, idle: bool) -> tuple[Rows, BoolArray]:
        """Who may enter, in order, as far as there are seats; and who of them is starving.

        A policy may keep requests out with +inf, but not all of them while nothing runs.
        """
        columns = self._table.view(waiting)
        starving = self._decisions.guard_starvation(columns, view)
        scores = self._decisions.order_admissions(columns, view)
        wanted = np.isfinite(scores) | (idle and not (np.isfinite(scores) | starving).any())
        normal = np.flatnonzero(~starving & wanted)
        normal = normal[np.argsort(scores[normal], kind="stable")]
        lead = max(0, NORMAL_PER_STARVING - self._normal_since_starving)
        order = interleave(np.flatnonzero(starving), normal, lead)[: self._table.free_seats]
        return waiting[order], starving[order]

    def _has_blocks(self, plan: PlanBuilder, row: int, hits: list[int], keep: int) -> bool:
        """Whether the row may hold all its known tokens, with `keep` and the watermark left."""
        missing = self._table.blocks_for(row) - len(hits)
        left = self._pool.num_available - self._pool.num_unheld(hits) - missing
        return left >= (0 if plan.is_empty else keep + self._watermark)

    def _seat(self, plan: PlanBuilder, row: int, hits: list[int]) -> None:
        table, cached = self._table, len(hits) * self.config.block_size
        self._pool.pin(hits)
        missing = self._pool.allocate(table.blocks_for(row) - len(hits))
        known = int(table.num_tokens[row])
        if table.state[row] == State.WAITING.value:
            self._prefix_queries += known
            self._prefix_hits += cached
        table.seat_row(row, np.concatenate((np.array(hits, dtype=np.int32), missing)), cached)
        plan.place_admitted(row, cached, known - cached)

    def _keys(self, row: int) -> list[BlockKey]:
        """The row's keys, for as many blocks as a match may use: a token is left to compute."""
        cold = self._table.cold(row)
        most = (int(self._table.num_tokens[row]) - 1) // self.config.block_size
        if self.config.enable_prefix_caching:
            extend_keys(cold.keys, cold.salt, cold.tokens, self.config.block_size, most)
        return cold.keys[:most]

    def _match(self, row: int) -> list[int]:
        """Blocks of the row's prefix that are in the index now; not pinned yet."""
        return self._pool.match(self._keys(row))

    def _count_overtakes(self, waiting: Rows, fresh: list[int]) -> None:
        left = waiting[self._table.seat[waiting] < 0]
        self._table.overtakes[left] += later_admissions(self._table.arrival[left], fresh)

    def _place_running(self, plan: PlanBuilder, rows: Rows, growth: Counts) -> None:
        table = self._table
        growing = rows[growth > 0]
        table.append_blocks(growing, self._pool.allocate(len(growing)))
        remaining = table.num_tokens[rows] - table.computed_tokens[rows]
        decoding = remaining == 1
        plan.place_running(rows[decoding], rows[~decoding], remaining[~decoding])

    def _preempt(self, plan: PlanBuilder, budget: _Budget, now_s: float) -> None:
        """Clear the deficit with just enough victims, then place who is left."""
        if budget.spare >= 0:
            return
        view = self._view(now_s, plan)
        victims = self._select_victims(budget, view)
        self._ask_for_swaps(victims, view)
        for row in victims:
            self._pool.release(self._table.blocks(row))
            self._table.unseat_row(int(row))
            plan.preempted.append(int(row))
        self._preemptions += len(victims)
        stays = ~np.isin(budget.running, victims)
        self._place_running(plan, budget.running[stays], budget.growth[stays])

    def _select_victims(self, budget: _Budget, view: StepView) -> Rows:
        table = self._table
        scores = self._decisions.select_victims(table.view(budget.running), view)
        oldest = table.arrival[budget.running] == table.arrival[budget.running].min()
        order = np.lexsort((-table.admission[budget.running], scores, oldest))
        rows, growth = budget.running[order], budget.growth[order]
        tables = [table.blocks(row) for row in rows]
        chosen = just_enough(tables, growth, -budget.spare, self._pool.references)
        return rows[chosen]

    def _ask_for_swaps(self, victims: Rows, view: StepView) -> None:
        """The hook is asked although there is no host pool yet: every victim is recomputed."""
        costs = PreemptionCosts(
            recompute_tokens=self._table.num_tokens[victims],
            swap_blocks=self._table.blocks_held[victims],
            free_host_blocks=0,
        )
        self._decisions.choose_preemption(self._table.view(victims), costs, view)

    def _assemble(self, plan: PlanBuilder, ended: Ended) -> StepResult:
        table = self._table
        rows, counts = plan.rows_and_counts(table.num_tokens - table.computed_tokens)
        report = StepReport(
            requests=ended.requests,
            tokens=ended.tokens,
            finished=ended.finished,
            plan_rows=ended.plan_rows,
            admitted=table.request[np.array(plan.admitted, dtype=np.intp)],
            admitted_cached=np.array(plan.cached, dtype=np.int32),
            preempted=table.request[np.array(plan.preempted, dtype=np.intp)],
        )
        if not len(rows):
            return StepResult(report, None)
        step_plan = assemble(table, rows, counts, plan.step_id, plan.admitted)
        self._planned = (step_plan, rows)
        return StepResult(report, step_plan)

    def statistics(self) -> Statistics:
        counts = self._pool.counts
        running = self.config.max_num_seqs - self._table.free_seats
        return Statistics(
            running=running,
            waiting=len(self._table) - running,
            free_blocks=counts.free,
            cached_blocks=counts.cached,
            total_blocks=self.config.num_blocks,
            steps=self._steps,
            preemptions=self._preemptions,
            computed_tokens=self._computed_tokens,
            generated_tokens=self._generated_tokens,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
            policy_faults=self._decisions.faults,
        )

    def check_invariants(self) -> None:
        """Recount everything; raises AssertionError where the state contradicts itself."""
        table, size = self._table, self.config.block_size
        running = table.running()
        self._pool.check(table.blocks(row) for row in running)
        assert sum(self._pool.counts) == self.config.num_blocks
        assert len(set(table.seat[running])) == len(running) == table.num_seats - table.free_seats
        capacity = table.blocks_held[running] * size
        assert (table.computed_tokens[running] <= capacity).all()
        assert (table.computed_tokens[running] < table.num_tokens[running]).all()
        waiting = table.waiting()
        assert not table.blocks_held[waiting].any(), "a waiting row holds blocks"
        assert len(running) + len(waiting) == len(table)
