"""Decisions of a run, kept with all that was known when they were taken, as lines of JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cadenza.policies.cached_blocks import CachedBlocks
from cadenza.policies.contract import ARGUMENTS, ENGINE_HOOKS
from cadenza.policies.decisions import Decisions
from cadenza.policies.markers import HOOKSPEC_VERSION
from cadenza.policies.profile import Profile
from cadenza.policies.views import PreemptionCosts, RequestColumns, StepBudget, StepView
from cadenza.testing.tables import COLUMNS, cached_blocks, request_columns

Answer: TypeAlias = npt.NDArray[Any] | StepBudget

_BLOCK_COLUMNS = ("block", "last_use", "published", "continued")
_FORMAT = "cadenza-decisions"
_VERSION = 1
_DATACLASSES: dict[str, Callable[..., Any]] = {"step": StepView, "costs": PreemptionCosts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One call of a hook: by whom it was answered, with what, about which requests."""

    hook: str
    policy: str  # that the profile chose; empty for events, of which nobody decides
    arguments: dict[str, Any]  # the hook's, by name
    answer: Answer | None  # None for events

    @property
    def step_id(self) -> int:
        return int(self.arguments["step"].step_id)


class RecordingDecisions(Decisions):
    """Decides as the profile does, and keeps every question and answer.

        decisions = RecordingDecisions(Profile())
        driver = Driver(decisions=decisions)
        ...
        write_recording(Path("run.jsonl"), decisions.asked)

    Events are kept whether or not a policy of the profile wants to be told.
    """

    def __init__(self, profile: Profile | None = None) -> None:
        profile = profile or Profile()
        super().__init__(profile)
        self._names = profile.names
        self.asked: list[Asked] = []

    def observes(self, hook: str) -> bool:
        return True

    def keep(self, hook: str, arguments: dict[str, Any], answer: Answer | None) -> None:
        """Views are copied: what they show may change with the next step."""
        copies = {name: _decoded(name, _encoded(each)) for name, each in arguments.items()}
        policy = self._names.get(hook, "")
        self.asked.append(Asked(hook=hook, policy=policy, arguments=copies, answer=answer))


def _recorded(hook: str) -> Callable[..., Any]:
    def method(self: RecordingDecisions, *given: Any, **named: Any) -> Any:
        arguments = dict(zip(ARGUMENTS[hook], given, strict=False)) | named
        answer = getattr(Decisions, hook)(self, **arguments)
        self.keep(hook, arguments, answer)
        return answer

    return method


for _hook in ENGINE_HOOKS:
    setattr(RecordingDecisions, _hook, _recorded(_hook))


def write_recording(file: Path, asked: Iterable[Asked]) -> None:
    """One line for the format, and one for every call."""
    with file.open("w") as lines:
        head = {"format": _FORMAT, "version": _VERSION, "hookspec": HOOKSPEC_VERSION}
        lines.write(json.dumps(head) + "\n")
        for each in asked:
            lines.write(json.dumps(_line(each), allow_nan=False) + "\n")


def read_recording(file: Path) -> Iterator[Asked]:
    """The calls in their order.

    Raises:
        ValueError: the file is no recording, or has lines that are none.
    """
    with file.open() as lines:
        if not _is_head(next(lines, "")):
            raise ValueError(f"{file} is no recording of format {_FORMAT} {_VERSION}")
        for number, line in enumerate(lines, start=2):
            try:
                yield _asked(json.loads(line))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{file}, line {number}: {error!r}") from error


def _is_head(line: str) -> bool:
    try:
        head = json.loads(line)
    except ValueError:
        return False
    wanted = {"format": _FORMAT, "version": _VERSION}
    return isinstance(head, dict) and wanted.items() <= head.items()


def _line(asked: Asked) -> dict[str, Any]:
    return {
        "hook": asked.hook,
        "policy": asked.policy,
        "arguments": {name: _encoded(each) for name, each in asked.arguments.items()},
        "answer": None if asked.answer is None else _encoded(asked.answer),
    }


def _asked(line: dict[str, Any]) -> Asked:
    return Asked(
        hook=line["hook"],
        policy=line["policy"],
        arguments={name: _decoded(name, each) for name, each in line["arguments"].items()},
        answer=_decoded_answer(line["answer"]),
    )


def _encoded(value: Any) -> Any:
    """In terms of JSON, which has no infinity: there it is text."""
    if isinstance(value, RequestColumns):
        return {name: _encoded(getattr(value, name)) for name in COLUMNS}
    if isinstance(value, CachedBlocks):
        return {name: _encoded(getattr(value, name)) for name in _BLOCK_COLUMNS}
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {each.name: _encoded(getattr(value, each.name)) for each in fields}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.ndarray):
        return [_encoded(each) for each in value.tolist()]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def _decoded(name: str, value: dict[str, Any]) -> Any:
    """An argument of this name."""
    values = {key: _array(e) if isinstance(e, list) else _number(e) for key, e in value.items()}
    if name in _DATACLASSES:
        return _DATACLASSES[name](**values)
    if name == "blocks":
        return cached_blocks(len(values["block"]), **values)
    columns = {key: each.astype(COLUMNS[key]) for key, each in values.items()}
    return request_columns(len(columns["request"]), **columns)


def _decoded_answer(answer: Any) -> Answer | None:
    if isinstance(answer, dict):
        return StepBudget(**answer)
    return None if answer is None else _array(answer)


def _array(values: list[Any]) -> npt.NDArray[Any]:
    return np.array([_number(each) for each in values])


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value
