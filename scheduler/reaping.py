"""Reap: what an outcome means for the rows that were planned."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.blocks import BlockPool
from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.plan import Int32Array, Int64Array, StepOutcome, StepPlan
from cadenza.scheduler.prefix import extend_keys
from cadenza.scheduler.states import FinishReason
from cadenza.scheduler.table import RequestTable, Rows

Codes = npt.NDArray[np.uint8]


class Ended(NamedTuple):
    """Rows that got a token or ended by themselves. Parallel arrays."""

    requests: Int64Array
    tokens: Int32Array  # -1 for a failed row
    finished: Codes  # values of `FinishReason`
    plan_rows: npt.NDArray[np.intp]  # where each stood in the plan

    @classmethod
    def nothing(cls) -> Ended:
        return cls(
            requests=np.empty(0, dtype=np.int64),
            tokens=np.empty(0, dtype=np.int32),
            finished=np.empty(0, dtype=np.uint8),
            plan_rows=np.empty(0, dtype=np.intp),
        )


class Reaper:
    """Applies outcomes to the table: tokens in, full blocks published, ended rows out."""

    def __init__(self, config: SchedulerConfig, table: RequestTable, pool: BlockPool) -> None:
        self._config = config
        self._table = table
        self._pool = pool
        self._eos = np.array(sorted(config.eos_token_ids), dtype=np.int32)

    def apply(self, plan: StepPlan, rows: Rows, outcome: StepOutcome) -> Ended:
        """Bring `rows`, in the order of `plan`, up to date; returns what happened to them."""
        table = self._table
        table.computed_tokens[rows] += plan.num_new
        sampled = np.flatnonzero(plan.samples & ~outcome.failed)
        failed = np.flatnonzero(outcome.failed)
        table.append_tokens(rows[sampled], outcome.tokens[sampled])
        self._publish(rows[~outcome.failed])
        codes = self._finish_codes(rows[sampled], outcome.tokens[sampled])
        failed_codes = np.full(len(failed), FinishReason.FAILED.value, dtype=np.uint8)
        told = np.concatenate((sampled, failed))
        ended = Ended(
            requests=table.request[rows[told]],
            tokens=np.concatenate((outcome.tokens[sampled], np.full(len(failed), -1, np.int32))),
            finished=np.concatenate((codes, failed_codes)),
            plan_rows=told,
        )
        for row in rows[failed]:
            # What it found in the index was computed by others and is theirs to judge
            self._pool.forget(table.blocks(row)[table.matched_blocks[row] :])
        for row in rows[told[ended.finished != FinishReason.NOT.value]]:
            self.remove(int(row))
        return ended

    def remove(self, row: int) -> None:
        """Let a row go in whatever state it is, with its blocks."""
        self._pool.release(self._table.blocks(row))
        self._table.remove(row)

    def _finish_codes(self, rows: Rows, tokens: Int32Array) -> Codes:
        table = self._table
        codes = np.full(len(rows), FinishReason.NOT.value, dtype=np.uint8)
        spent = table.generated_tokens[rows] >= table.max_tokens[rows]
        full = table.num_tokens[rows] >= self._config.max_model_len
        codes[spent | full] = FinishReason.LENGTH.value
        picky = np.flatnonzero(table.has_stop_ids[rows])
        stopped = (table.stop_token_ids[rows[picky]] == tokens[picky, None]).any(axis=1)
        codes[picky[stopped]] = FinishReason.STOP_TOKEN.value
        codes[np.isin(tokens, self._eos) & ~table.ignore_eos[rows]] = FinishReason.EOS.value
        return codes

    def _publish(self, rows: Rows) -> None:
        """Offer the blocks that became full in the last pass to the prefix index."""
        if not self._config.enable_prefix_caching:
            return
        table, size = self._table, self._config.block_size
        full = table.computed_tokens[rows] // size
        for row in rows[full > table.published_blocks[rows]]:
            upto = int(table.computed_tokens[row]) // size
            cold, blocks = table.cold(int(row)), table.blocks(row)
            extend_keys(cold.keys, cold.salt, cold.tokens, size, upto)
            for block in range(int(table.published_blocks[row]), upto):
                self._pool.publish(int(blocks[block]), cold.keys[block])
            table.published_blocks[row] = upto
