"""Everything that the phases of a step read and change, in one place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from cadenza.policies.cached_blocks import CachedBlocks
from cadenza.policies.decisions import Decisions
from cadenza.policies.views import StepView
from cadenza.scheduler.blocks import BlockPool
from cadenza.scheduler.blocks_alone import BlocksAlone
from cadenza.scheduler.columns import FloatColumn
from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.costs import CostModel
from cadenza.scheduler.credits import Credits
from cadenza.scheduler.decisions import DecisionLog, Finished
from cadenza.scheduler.host_pool import HostPool
from cadenza.scheduler.prefix import extend_keys
from cadenza.scheduler.prefix_index import Blocks
from cadenza.scheduler.states import FinishReason
from cadenza.scheduler.table import RequestTable, Rows
from cadenza.scheduler.waiting_prefixes import WaitingPrefixes


@dataclass(slots=True)
class Totals:
    """What has happened since the scheduler was built."""

    steps: int = 0
    preemptions: int = 0
    swaps: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


@dataclass(slots=True)
class Stores:
    """The scheduler's state. Built once; each phase of the step works on its part of it."""

    config: SchedulerConfig
    decisions: Decisions  # nobody keeps another reference, as others may take its place
    costs: CostModel
    table: RequestTable = field(init=False)
    pool: BlockPool = field(init=False)
    host: HostPool = field(init=False)
    prefixes: WaitingPrefixes = field(init=False)
    watermark: int = field(init=False)  # blocks that admissions leave free
    token_budget: int = field(init=False)  # of this step
    credits: Credits = field(default_factory=Credits)
    log: DecisionLog = field(default_factory=DecisionLog)
    totals: Totals = field(default_factory=Totals)

    def __post_init__(self) -> None:
        config = self.config
        self.table = RequestTable(
            num_seats=config.max_num_seqs,
            max_model_len=config.max_model_len,
            block_size=config.block_size,
        )
        self.pool = BlockPool(config.num_blocks, config.block_size)
        self.table.show("blocks_alone", BlocksAlone(self.table, self.pool))
        self.host = HostPool(config.num_host_blocks)
        self.prefixes = WaitingPrefixes(self.table, self.pool.index)
        self.token_budget = config.max_num_batched_tokens
        self.leave_free(config.watermark)

    def leave_free(self, share: float) -> None:
        """Set the watermark to this share of the pool."""
        self.watermark = math.ceil(share * self.config.num_blocks)

    def view(self, now_s: float) -> StepView:
        """The situation as policies see it."""
        return StepView(
            step_id=self.totals.steps,
            now_s=now_s,
            free_blocks=self.pool.num_available,
            cached_blocks=self.pool.counts.cached,
            total_blocks=self.config.num_blocks,
            block_size=self.config.block_size,
            free_seats=self.table.free_seats,
            token_budget=self.token_budget,
            free_host_blocks=self.host.num_free,
            preemptions=self.totals.preemptions,
            token_s=self.costs.token_s,
            context_s=self.costs.context_s,
            fixed_s=self.costs.fixed_s,
            step_s=self.costs.step_s,
            tenants=self.table.tenants,
        )

    def rank_evictions(self, now_s: float) -> None:
        """In this step blocks are evicted in the order of a policy, if one was chosen for it."""
        ranks = self.decisions.ranks_blocks
        self.pool.rank_evictions(partial(self._rank, now_s) if ranks else None)

    def _rank(self, now_s: float, blocks: Blocks) -> FloatColumn:
        places, index = np.arange(len(blocks)), self.pool.index
        columns = {
            "block": blocks.astype(np.int64),
            "last_use": places,
            "published": index.names[blocks],
            "continued": index.continued(blocks),
        }
        cached = CachedBlocks(columns, places)
        return self.decisions.rank_cached_blocks(cached, self.view(now_s))

    def findable(self, row: int, tokens: int) -> Blocks:
        """The blocks in which the row's first full blocks can be found now, up to `tokens`."""
        cold, size = self.table.cold(row), self.config.block_size
        ids, full = self.table.ids(row), tokens // size
        cold.keys = extend_keys(cold.keys, cold.salt, ids, size, full)
        root, ids = self.pool.index.root(cold.salt), ids[: full * size].reshape(-1, size)
        return self.pool.index.match(root, cold.keys, ids)

    def follow(self, row: int) -> None:
        """Keep the cached prefix of a row that has begun to wait current."""
        if self.config.enable_prefix_caching:
            self.prefixes.add(row)

    def remove(self, rows: Rows, reasons: Sequence[FinishReason], now_s: float) -> None:
        """Let rows go in whatever state they are, with all that they hold."""
        table, step_id = self.table, self.totals.steps
        self.pool.release(*table.block_lists(rows))
        generated = table.generated_tokens[rows].tolist()
        for row, num, reason in zip(rows.tolist(), generated, reasons, strict=True):
            cold = table.cold(row)
            for choice in cold.choices:
                self.log.append(Finished(step_id, now_s, choice, reason, num))
            if cold.host is not None:
                self.host.release(block for _, block in cold.host.copied)
        if self.credits.num_limited:
            for slot in table.credit[rows].tolist():
                self.credits.release(slot)
        self.prefixes.remove(rows)
        table.remove(rows)

    def drop_choice(self, row: int, request: int, reason: FinishReason, now_s: float) -> None:
        """Let one of several choices go that still share a row."""
        generated = int(self.table.generated_tokens[row])
        self.log.append(Finished(self.totals.steps, now_s, request, reason, generated))
        self.table.drop_choice(row, request)
        promised = self.table.promised_blocks
        promised[row] = max(0, promised[row] - 1) if self.table.choices[row] > 1 else 0
