"""What the scheduler decided about each generation, kept for a while when that has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cadenza.wire.messages import Decision, Submit


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One decision about one choice. `kind` and `facts` are as in `wire.messages.Decision`."""

    choice: int
    kind: str
    step_id: int
    time_s: float  # monotonic
    facts: Mapping[str, bool | int | float | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The decisions about all choices of a generation, in time order."""

    records: Sequence[Record]
    num_dropped: int  # older ones, for which there was no room


@dataclass(slots=True, eq=False)
class _Kept:
    """What is kept of one generation."""

    rows: Sequence[int]
    records: deque[Record]
    num_dropped: int = 0


class _Row(NamedTuple):
    kept: _Kept
    choice: int


@dataclass(slots=True, eq=False)
class Timelines:
    """The live generations and those that ended last, with the newest records of each.

    For room the generation that ended first is forgotten; a live one, the oldest, only when none
    has ended. A record takes less than half a KiB, so that `max_records` are at most 32 MiB.

    Rows are mapped to generations here once more, since a row's last record comes after its last
    token, when the engine client knows it no longer.
    """

    max_generations: int = 1000
    max_records: int = 1 << 16  # of all together
    max_records_each: int = 256
    num_dropped: int = field(default=0, init=False)  # of generations that were kept, so far
    _live: dict[str, _Kept] = field(default_factory=dict, init=False)  # the oldest first
    _ended: dict[str, _Kept] = field(default_factory=dict, init=False)  # as they ended
    _rows: dict[int, _Row] = field(default_factory=dict, init=False)
    _num_records: int = field(default=0, init=False)

    def get(self, generation_id: str) -> Timeline | None:
        """A generation's decisions so far; None if it is unknown, or forgotten."""
        kept = self._live.get(generation_id) or self._ended.get(generation_id)
        if kept is None:
            return None
        return Timeline(records=tuple(kept.records), num_dropped=kept.num_dropped)

    def begin(self, generation_id: str, submits: Iterable[Submit]) -> None:
        """Keep from now on what is decided about a generation's rows, at another one's cost."""
        choices = {
            submit.request + row: submit.choice + row
            for submit in submits
            for row in range(submit.n)
        }
        kept = _Kept(rows=tuple(choices), records=deque(maxlen=self.max_records_each))
        self._live[generation_id] = kept
        self._rows.update((row, _Row(kept, choice)) for row, choice in choices.items())
        self._make_room()

    def end(self, generation_id: str) -> None:
        """Let the generation be forgotten. Until then what is decided is kept. Idempotent."""
        if kept := self._live.pop(generation_id, None):
            self._ended[generation_id] = kept

    def add(self, decisions: Iterable[Decision]) -> None:
        """Keep decisions, which come in time order. Those about unknown rows are ignored."""
        for decision in decisions:
            if row := self._rows.get(decision.request):
                self._append(row.kept, _record(decision, row.choice))

    def _append(self, kept: _Kept, record: Record) -> None:
        if len(kept.records) == self.max_records_each:
            kept.num_dropped += 1
            self.num_dropped += 1
        else:
            self._num_records += 1
        kept.records.append(record)
        self._make_room()

    def _make_room(self) -> None:
        while (
            len(self._live) + len(self._ended) > self.max_generations
            or self._num_records > self.max_records
        ):
            self._forget_one()

    def _forget_one(self) -> None:
        generations = self._ended or self._live
        kept = generations.pop(next(iter(generations)))
        self._num_records -= len(kept.records)
        for row in kept.rows:
            del self._rows[row]


def _record(decision: Decision, choice: int) -> Record:
    return Record(
        choice=choice,
        kind=decision.kind,
        step_id=decision.step_id,
        time_s=decision.time_s,
        facts=decision.facts,
    )
