"""Preemption: who loses the seat, and whether its keys and values are swapped or dropped.

Two occasions: running rows lack blocks (`clear_deficit`), or a waiting row may have what others
hold (`make_room`). Either takes just enough victims, or none if no set of them suffices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cadenza.policies.views import PreemptionCosts
from cadenza.scheduler.budget import Budget, growth_of, place_running
from cadenza.scheduler.columns import IntColumn
from cadenza.scheduler.decisions import Cause, Displaced, Preempted
from cadenza.scheduler.planning import PlanBuilder
from cadenza.scheduler.prefix_index import Blocks
from cadenza.scheduler.request import HostCopy
from cadenza.scheduler.states import State
from cadenza.scheduler.stores import Stores
from cadenza.scheduler.table import Rows
from cadenza.scheduler.victims import Shortage, eviction_order, just_enough, protection


class Lack(NamedTuple):
    """What a waiting row lacks."""

    whole: Shortage  # with what the reservation policy wants kept free
    bare: Shortage  # without: who displaces others takes over what they would have grown by


class Flavour(NamedTuple):
    """How one victim is to leave, and what either way would cost."""

    swap: bool
    recompute_s: float
    swap_s: float


class Preemption:
    """Evicts rows. One instance a scheduler; `begin` starts a step."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._order: Rows | None = None  # seated rows, first victim first; None: not asked yet
        self._flavours: dict[int, Flavour] | None = None  # None: not asked yet
        self._has_displaced = False  # whether displacement was asked for in this step

    def begin(self) -> None:
        """Policies may be asked again."""
        self._order = self._flavours = None
        self._has_displaced = False

    def force(self, plan: PlanBuilder, row: int, swap: bool) -> None:
        """Evict a row, if it has a seat, because it was asked for."""
        table = self._stores.table
        if table.seat[row] >= 0:
            flavour = self._costs(np.array([row]), plan, ask=False)[0]
            swap = swap and bool(table.may_swap[row])
            self._evict(plan, row, flavour._replace(swap=swap), Cause.FORCED)

    def clear_deficit(self, plan: PlanBuilder, budget: Budget) -> None:
        """Preempt just enough rows that the others can grow, and place those."""
        stores, table = self._stores, self._stores.table
        claims = table.promised_blocks.copy()
        claims[budget.running] += budget.growth
        rows = self._eviction_order(plan)
        chosen = rows[self._enough(rows, claims, Shortage(-budget.spare))]
        self._ask(chosen, plan)
        for row in chosen.tolist():
            self._leave(plan, row, Cause.ROOM if table.parked[row] else Cause.MEMORY)
        stays = budget.running[table.seat[budget.running] >= 0]
        place_running(stores, plan, stays, growth_of(stores, stays))

    def make_room(
        self, plan: PlanBuilder, budget: Budget, candidate: int, lacks: Lack, found: Blocks
    ) -> bool:
        """Evict parked rows for a waiting one, or such as a policy lets it displace.

        Returns whether it has what it lacked. Policies are asked once a step, for the first row
        that lacks something; a later one may still have what parked rows hold.

        Args:
            candidate: the waiting row.
            lacks: what it lacks.
            found: blocks that it will pin, and that therefore nobody frees for it.
        """
        pool = self._stores.pool
        rows = self._parked(plan)
        may_displace = not self._has_displaced and self._stores.decisions.may_displace
        may_displace &= self._flavours is None
        if not (len(rows) or may_displace):
            return False
        pool.pin(found)
        claims = self._stores.table.promised_blocks
        if plan.is_empty:  # then the shortage leaves promises out, so they are nothing to give
            claims = np.zeros_like(claims)
        chosen = rows[self._enough(rows, claims, lacks.whole)]
        has_room = len(chosen) > 0
        if not has_room and may_displace:
            self._has_displaced = True
            allowed = self._displaceable(plan, budget, candidate)
            rows = self._eviction_order(plan)
            rows = rows[self._stores.table.parked[rows] | np.isin(rows, allowed)]
            chosen = rows[self._enough(rows, claims, lacks.bare)]
            # Who may displace others need not wait for the reservation made for their growth
            has_room = len(chosen) > 0 or (len(allowed) > 0 and lacks.bare.is_none)
        pool.release(found)
        if len(chosen) and self._flavours is None:
            others = rows[~np.isin(rows, chosen)]
            self._ask(np.concatenate((chosen, others)), plan)
        for row in chosen.tolist():
            self._give_way(plan, row, candidate)
        return has_room

    def _eviction_order(self, plan: PlanBuilder) -> Rows:
        """Rows that have a seat, first victim first. Policies score them once a step."""
        stores, table = self._stores, self._stores.table
        if self._order is None:
            rows = table.seated()
            scores = stores.decisions.select_victims(table.view(rows), stores.view(plan.now_s))
            ranks = protection(
                table,
                rows,
                max_preemptions=stores.config.max_preemptions,
                host_is_full=not stores.host.num_free,
            )
            self._order = rows[eviction_order(table, rows, ranks, scores)]
        return self._order[table.seat[self._order] >= 0]

    def _parked(self, plan: PlanBuilder) -> Rows:
        table = self._stores.table
        if not table.num_parked:
            return np.empty(0, dtype=np.intp)
        rows = self._eviction_order(plan)
        if self._flavours is not None:
            rows = rows[np.isin(rows, list(self._flavours))]
        return rows[table.parked[rows]]

    def _enough(self, rows: Rows, claims: IntColumn, shortage: Shortage) -> Rows:
        """Indices into `rows` of just enough victims.

        `claims` is a whole column: blocks counted in the shortage that a victim needs no longer.
        """
        table = self._stores.table
        return just_enough(
            (table.blocks(row) for row in rows),
            claims[rows],
            table.choices[rows].tolist(),
            shortage,
            self._stores.pool.references,
        )

    def _give_way(self, plan: PlanBuilder, row: int, candidate: int) -> None:
        stores = self._stores
        if stores.table.parked[row]:
            self._leave(plan, row, Cause.ROOM)
            return
        plan.withdraw(row)
        by = int(stores.table.request[candidate])
        for choice in stores.table.cold(row).choices:
            stores.log.append(Displaced(plan.step_id, plan.now_s, choice, by))
        self._leave(plan, row, Cause.DISPLACED)

    def _displaceable(self, plan: PlanBuilder, budget: Budget, candidate: int) -> Rows:
        """Running rows that a policy lets the candidate push out."""
        stores, table = self._stores, self._stores.table
        rows = budget.running
        last = table.block_table[table.seat[rows], table.blocks_held[rows] - 1]
        fixed = np.isin(last, [copy for _, copy in plan.copies.on_write])  # not copied yet
        fixed |= table.preemptions[rows] >= stores.config.max_preemptions
        fixed |= table.generated_tokens[rows] < table.pinned_until[rows]
        rows = rows[~fixed & (table.seat[rows] >= 0)]
        if not len(rows):
            return rows
        margins = stores.decisions.allow_displacement(
            table.view(np.array([candidate])), table.view(rows), stores.view(plan.now_s)
        )
        return rows[margins > 0]

    def _ask(self, rows: Rows, plan: PlanBuilder) -> None:
        """Let the policy choose how each of the rows would leave, in the order of eviction."""
        self._flavours = dict(zip(rows.tolist(), self._costs(rows, plan, ask=True), strict=True))

    def _costs(self, rows: Rows, plan: PlanBuilder, *, ask: bool) -> list[Flavour]:
        stores, table = self._stores, self._stores.table
        size, computed = table.block_size, table.computed_tokens[rows]
        used = -(-computed // size)
        places = np.arange(max(1, int(used.max())))
        blocks = table.block_table[table.seat[rows], : len(places)]
        shared = (stores.pool.references[blocks] > 1) & (stores.pool.index.names[blocks] != 0)
        shared &= places < (computed // size)[:, None]
        alone = (~shared & (places < used[:, None])).sum(axis=1)
        cached = np.cumprod(shared, axis=1).sum(axis=1) * size
        tokens = np.maximum(0, computed - cached)
        may_swap = table.may_swap[rows] & (alone > 0) & (stores.host.num_blocks > 0)
        costs = PreemptionCosts(
            recompute_tokens=tokens,
            recompute_s=stores.costs.recompute_s(tokens, cached),
            swap_blocks=alone,
            swap_s=np.where(may_swap, stores.costs.swap_s(alone), np.inf),
            free_host_blocks=stores.host.num_free,
        )
        wanted = np.zeros(len(rows), dtype=bool)
        if ask:
            view = stores.view(plan.now_s)
            wanted = stores.decisions.choose_preemption(table.view(rows), costs, view)
        swap = (wanted | ~table.may_recompute[rows]) & table.may_swap[rows]
        return [
            Flavour(*each)
            for each in zip(
                swap.tolist(), costs.recompute_s.tolist(), costs.swap_s.tolist(), strict=True
            )
        ]

    def _leave(self, plan: PlanBuilder, row: int, cause: Cause) -> None:
        assert self._flavours is not None
        self._evict(plan, row, self._flavours[row], cause)

    def _evict(self, plan: PlanBuilder, row: int, flavour: Flavour, cause: Cause) -> None:
        """Take the row's seat and blocks; swap if it was chosen and the host has room."""
        stores, table = self._stores, self._stores.table
        cold = table.cold(row)
        swapped = flavour.swap and self._copy_out(plan, row)
        cold.lost_tokens = 0 if swapped else int(table.computed_tokens[row])
        stores.pool.release(table.blocks(row))
        table.unseat_row(row, State.SWAPPED if swapped else State.PREEMPTED)
        table.waits_since_s[row] = plan.now_s
        if not swapped:
            stores.follow(row)
        plan.unseated.append(row)
        for choice in cold.choices:
            plan.preempted.append(choice)
            costs = flavour.recompute_s, flavour.swap_s
            stores.log.append(Preempted(plan.step_id, plan.now_s, choice, cause, swapped, *costs))
        stores.totals.preemptions += len(cold.choices)
        stores.totals.swaps += len(cold.choices) * swapped

    def _copy_out(self, plan: PlanBuilder, row: int) -> bool:
        """Plan copies of what the row cannot find in the prefix index again; False: no room."""
        stores, table = self._stores, self._stores.table
        computed = int(table.computed_tokens[row])
        blocks = table.blocks(row)[: -(-computed // table.block_size)]
        shared = np.zeros(len(blocks), dtype=bool)
        found = stores.findable(row, computed)
        own = blocks[: len(found)]
        shared[: len(found)] = (found == own) & (stores.pool.references[own] > 1)
        copied = np.flatnonzero(~shared).tolist()
        if not copied or len(copied) > stores.host.num_free:
            return False
        hosts = stores.host.take(len(copied))
        plan.copies.swap_out += zip(blocks[~shared].tolist(), hosts, strict=True)
        table.cold(row).host = HostCopy(
            list(zip(copied, hosts, strict=True)), np.flatnonzero(shared).tolist(), computed
        )
        return True
