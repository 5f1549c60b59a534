"""What the scheduler decided about each generation, kept for a while when that has ended."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cadenza.wire.messages import Decision, Submit

# What whoever asks is told of a generation that there is nothing to tell of
UNKNOWN = (
    "No such request is known. Only the latest are kept; a call with several prompts is one "
    "request for each of them, ID-0, ID-1 and so on."
)
_PREFIX = re.compile("(chatcmpl|cmpl)-")  # of ids as OpenAI's clients know them

# What a record makes of its choice. Records of other kinds leave the choice as it is.
_STATES = {
    "arrived": "waiting",
    "admitted": "running",
    "resumed": "running",
    "parked": "parked",
    "unparked": "running",
    "interrupted": "preempted",  # its engine is gone
    "preempted": "preempted",  # or "swapped", as a fact of the record says
    "host_copy_dropped": "preempted",
    "refused": "finished",
    "finished": "finished",
}


def generation_id(name: str) -> str:
    """The generation's own id, of one as a client may know it."""
    return _PREFIX.sub("", name, count=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a timeline is about."""

    model: str
    tenant: str
    prompt_tokens: int
    created: int  # Unix time, in seconds
    began_s: float = field(default_factory=time.monotonic)  # when it was sent to the engine


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceStatus:
    """How far one choice is."""

    state: str  # "waiting", "running", "parked", "preempted", "swapped" or "finished"
    reason: str | None  # why it ended, by a name of `wire.messages.Finished`; None: it has not
    generated_tokens: int | None  # known once it has ended
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStatus:
    """How far a generation is, by what the scheduler has told of it."""

    subject: Subject
    cached_tokens: int | None  # of the prompt; known once a choice has been admitted
    choices: Sequence[ChoiceStatus]


@dataclass(slots=True)
class _Progress:
    """One choice, as its records tell."""

    state: str = "waiting"
    reason: str | None = None
    generated_tokens: int | None = None
    preemptions: int = 0

    def follow(self, decision: Decision) -> None:
        facts = decision.facts
        self.state = _STATES.get(decision.kind, self.state)
        if decision.kind == "preempted":
            self.preemptions += 1
            if facts.get("swapped"):
                self.state = "swapped"
        elif self.state == "finished":
            self.reason = str(facts.get("reason", "refused"))
            if "generated_tokens" in facts:
                self.generated_tokens = int(facts["generated_tokens"])

    def status(self) -> ChoiceStatus:
        return ChoiceStatus(
            state=self.state,
            reason=self.reason,
            generated_tokens=self.generated_tokens,
            preemptions=self.preemptions,
        )


@dataclass(slots=True, eq=False)
class _Kept:
    """What is kept of one generation."""

    subject: Subject
    rows: Sequence[int]
    choices: Sequence[_Progress]
    records: deque[Record]
    num_dropped: int = 0
    cached_tokens: int | None = None


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
        kept = self._find(generation_id)
        if kept is None:
            return None
        return Timeline(records=tuple(kept.records), num_dropped=kept.num_dropped)

    def status(self, generation_id: str) -> RequestStatus | None:
        """How far a generation is; None if it is unknown, or forgotten."""
        kept = self._find(generation_id)
        if kept is None:
            return None
        return RequestStatus(
            subject=kept.subject,
            cached_tokens=kept.cached_tokens,
            choices=[choice.status() for choice in kept.choices],
        )

    def begin(self, generation_id: str, submits: Iterable[Submit], subject: Subject) -> None:
        """Keep from now on what is decided about a generation's rows, at another one's cost."""
        choices = {
            submit.request + row: submit.choice + row
            for submit in submits
            for row in range(submit.n)
        }
        kept = _Kept(
            subject=subject,
            rows=tuple(choices),
            choices=[_Progress() for _ in choices],
            records=deque(maxlen=self.max_records_each),
        )
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
                row.kept.choices[row.choice].follow(decision)
                if row.kept.cached_tokens is None and decision.kind == "admitted":
                    row.kept.cached_tokens = int(decision.facts.get("cached_tokens", 0))
                self._append(row.kept, _record(decision, row.choice))

    def _find(self, generation_id: str) -> _Kept | None:
        return self._live.get(generation_id) or self._ended.get(generation_id)

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
