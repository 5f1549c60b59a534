"""From a step's report to the frame that the front process reads.

A frame is built in every step, so nothing here looks at fields by reflection but decisions, of
which a steady step has none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, EnumType
from typing import NamedTuple, get_args, get_type_hints

import numpy as np
from msgspec.structs import asdict

from cadenza.policies.runner import FaultCount
from cadenza.scheduler.decisions import Cause, RefusedArrival
from cadenza.scheduler.decisions import Decision as Record
from cadenza.scheduler.plan import Logprobs, StepOutcome
from cadenza.scheduler.report import Statistics, StepReport
from cadenza.scheduler.states import FinishReason
from cadenza.wire import messages
from cadenza.wire.messages import Counters, Decision, HookUse, PromptScores, RowLogprobs, Step

_COMMON = ("step_id", "time_s", "request")  # the first fields of every record


def step_frame(
    report: StepReport,
    executed: StepOutcome | None,
    statistics: Statistics,
    received: int,
    policy_news: Sequence[FaultCount] = (),
    hook_uses: Sequence[HookUse] = (),
    patience_s: float = 0.0,
) -> Step:
    """The frame for `report`, with the log-probabilities of the outcome that it reaped.

    `received` is how many messages were handled before the step, `policy_news` what
    `PolicyRunner.take_news` has to tell, `hook_uses` what `EnginePolicies.take_uses` has,
    `patience_s` what `Patience` allows.
    """
    return Step(
        step_id=statistics.steps,
        requests=report.requests.tobytes(),
        tokens=report.tokens.tobytes(),
        finished=report.finished.tobytes(),
        logprobs=_logprobs(report, executed),
        prompt_scores=_prompt_scores(executed),
        admitted=report.admitted.tobytes(),
        admitted_cached=report.admitted_cached.tobytes(),
        preempted=report.preempted.tobytes(),
        decisions=tuple(map(_decision, report.decisions)) if report.decisions else (),
        counters=Counters(received, *statistics),  # in the same order
        policy_faults=tuple(messages.FaultCount(*count) for count in policy_news),
        hook_uses=tuple(hook_uses),
        patience_s=patience_s,
    )


def _kind(record: type[Record]) -> str:
    """The name that the outside knows a class of records by."""
    if record is RefusedArrival:
        return "refused"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", record.__name__).lower()


class _Outline(NamedTuple):
    """How the records of a class are told."""

    kind: str
    members: tuple[str, ...]  # fields that are members of an enum, told by name


def _outline(record: type[Record]) -> _Outline:
    assert record.__struct_fields__[:3] == _COMMON
    hints = get_type_hints(record)
    members = (name for name in record.__struct_fields__ if isinstance(hints[name], EnumType))
    return _Outline(_kind(record), tuple(members))


_OUTLINES: dict[type[Record], _Outline] = {record: _outline(record) for record in get_args(Record)}
_NAMES: dict[Enum, str] = {
    member: member.name.lower() for kind in (Cause, FinishReason) for member in kind
}


def _decision(record: Record) -> Decision:
    kind, members = _OUTLINES[type(record)]
    facts = asdict(record)
    step_id, time_s, request = map(facts.pop, _COMMON)
    for name in members:
        facts[name] = _NAMES[facts[name]]
    return Decision(kind, request, step_id, time_s, facts)


def _logprobs(report: StepReport, executed: StepOutcome | None) -> tuple[RowLogprobs, ...]:
    if executed is None or not executed.logprobs:
        return ()
    wanted = np.isin(report.samples, list(executed.logprobs)) & (report.tokens >= 0)
    return tuple(
        _row_logprobs(int(row), executed.logprobs[int(report.samples[row])])
        for row in np.flatnonzero(wanted)
    )


def _prompt_scores(executed: StepOutcome | None) -> tuple[PromptScores, ...]:
    if executed is None or not executed.prompt_scores:
        return ()
    return tuple(
        PromptScores(request, first, *(array.tobytes() for array in arrays))
        for request, first, *arrays in executed.prompt_scores
    )


def _row_logprobs(row: int, logprobs: Logprobs) -> RowLogprobs:
    return RowLogprobs(
        row, logprobs.sampled, logprobs.top_ids.tobytes(), logprobs.top_logprobs.tobytes()
    )
