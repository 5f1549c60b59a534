"""What the scheduler decided about each generation, kept when the generation has ended."""

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
    """The newest generations, and the newest records of each.

    Rows are mapped to generations here once more, since a row's last record comes after its last
    token, when the engine client knows it no longer.
    """

    max_generations: int = 1000
    max_records: int = 256  # of each
    num_dropped: int = field(default=0, init=False)  # records, since the front started
    _generations: dict[str, _Kept] = field(default_factory=dict, init=False)  # the oldest first
    _rows: dict[int, _Row] = field(default_factory=dict, init=False)

    def get(self, generation_id: str) -> Timeline | None:
        """A generation's decisions so far; None if it is unknown, or too old."""
        kept = self._generations.get(generation_id)
        if kept is None:
            return None
        return Timeline(records=tuple(kept.records), num_dropped=kept.num_dropped)

    def begin(self, generation_id: str, submits: Iterable[Submit]) -> None:
        """Keep from now on what is decided about a generation's rows, at an older one's cost."""
        choices = {
            submit.request + row: submit.choice + row
            for submit in submits
            for row in range(submit.n)
        }
        kept = _Kept(rows=tuple(choices), records=deque(maxlen=self.max_records))
        self._generations[generation_id] = kept
        self._rows.update((row, _Row(kept, choice)) for row, choice in choices.items())
        if len(self._generations) > self.max_generations:
            self._forget_oldest()

    def add(self, decisions: Iterable[Decision]) -> None:
        """Keep decisions, which come in time order. Those about unknown rows are ignored."""
        for decision in decisions:
            if row := self._rows.get(decision.request):
                self._append(row.kept, _record(decision, row.choice))

    def _append(self, kept: _Kept, record: Record) -> None:
        if len(kept.records) == self.max_records:
            kept.num_dropped += 1
            self.num_dropped += 1
        kept.records.append(record)

    def _forget_oldest(self) -> None:
        kept = self._generations.pop(next(iter(self._generations)))
        self.num_dropped += len(kept.records)
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
