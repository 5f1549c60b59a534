"""What must hold of the events of a call, whatever it asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

import grpc

from cadenza.service.detokenizer import encodable
from cadenza.v1 import generation_pb2 as pb

LIMIT_S = 30.0  # for one call; whatever takes longer hangs

TERMINALS = ("finished", "failed")
_BEGINNING = ("submit", "append")
_CHANGING = ("cancel", "reprioritise", "set_deadline", "credit")
_MAX_NAME_CHARS = 128

# Of a call, or in band. Neither INTERNAL nor UNKNOWN, and UNAVAILABLE while nothing is wrong here.
ALLOWED = {
    grpc.StatusCode[name].value[0]
    for name in (
        "OK",
        "CANCELLED",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "RESOURCE_EXHAUSTED",
        "DEADLINE_EXCEEDED",
        "ABORTED",
        "OUT_OF_RANGE",
    )
}


def check_life(events: Sequence[pb.Event], *, is_resumed: bool = False) -> None:
    """Accepted, then what happens to its choices, then one end; or it fails at once.

    `is_resumed`: it may be what was left of that.
    """
    kinds = [event.WhichOneof("event") for event in events]
    if kinds == ["failed"]:
        return
    assert [kind in TERMINALS for kind in kinds] == [False] * (len(kinds) - 1) + [True], kinds
    numbers = [event.number for event in events if event.number]
    assert numbers == [*range(numbers[0], numbers[0] + len(numbers))] if numbers else True, numbers
    if is_resumed and kinds[0] != "accepted":
        assert numbers, kinds
        return
    assert kinds[0] == "accepted", kinds
    ended = [event.choice_finished for event in events if event.HasField("choice_finished")]
    told = Counter[int]()
    for event in events:
        if event.HasField("tokens"):
            told[event.tokens.choice] += len(event.tokens.token_ids)
    for end in ended:
        assert told[end.choice] == end.completion_tokens
    if kinds[-1] == "finished":
        num = events[0].accepted.num_choices
        assert sorted(end.choice for end in ended) == [*range(num)]
        usage = events[-1].finished.usage
        assert usage.completion_tokens == told.total()
        assert usage.prompt_tokens == events[0].accepted.prompt_tokens


def check_session(
    actions: Sequence[pb.SessionRequest],
    events: Sequence[pb.Event],
    *,
    whole: bool,
    allowed: Set[int] = ALLOWED,
) -> None:
    """Each request's life; and where the session came to its end, one end for each beginning.

    `allowed`: codes of what may fail in it.
    """
    resumed = {action.submit.request_id for action in actions if action.submit.HasField("resume")}
    lives: dict[str, list[pb.Event]] = {}
    for event in events:
        if event.HasField("failed"):
            assert event.failed.code in allowed, event
            assert event.failed.message, event
        if not event.request_id:
            assert event.HasField("failed"), event
            continue
        life = lives.setdefault(event.request_id, [])
        life.append(event)
        if event.WhichOneof("event") in TERMINALS:
            is_resumed = event.request_id in resumed
            check_life(lives.pop(event.request_id), is_resumed=is_resumed)
    if whole:
        assert not lives, f"without an end: {[*lives]}"
        _check_ends(actions, events)


def _check_ends(actions: Sequence[pb.SessionRequest], events: Sequence[pb.Event]) -> None:
    """Every action is answered once: under its request's name, or without one by its own words."""
    nameless = Counter(event.failed.message for event in events if not event.request_id)
    ends = Counter(
        event.request_id
        for event in events
        if event.request_id and event.WhichOneof("event") in TERMINALS
    )
    begun: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    strangers: Counter[str] = Counter()  # changes of what had not been begun before
    num_deadlines = num_odd = 0
    for action in actions:
        kind = action.WhichOneof("action")
        if kind in _BEGINNING:
            begun[getattr(action, kind).request_id] += 1
        elif kind in _CHANGING:
            name = getattr(action, kind).request_id
            changed[name] += 1
            if kind == "set_deadline" and _is_past(action.set_deadline):
                num_deadlines += 1
            elif name not in begun:
                strangers[name] += 1
        else:
            num_odd += 1

    for name, count in begun.items():
        if not name:
            assert nameless.pop("request_id is required", 0) == count
        elif len(name) > _MAX_NAME_CHARS:
            assert not ends[name], name
        else:
            told = f"request_id {name!r} is that of a live request on this stream"
            twice = nameless.pop(encodable(told), 0)
            assert ends[name] + twice == count, f"{name!r}: {count} begun, {ends[name]} ended"
    assert ends.keys() <= begun.keys()
    too_long = sum(count for name, count in begun.items() if len(name) > _MAX_NAME_CHARS)
    message = f"request_id is longer than {_MAX_NAME_CHARS} characters"
    assert nameless.pop(message, 0) == too_long
    assert nameless.pop("this server does not know the action", 0) == num_odd
    for short in {name[:_MAX_NAME_CHARS] for name in changed}:
        told = encodable(f"no request of this stream is called {short!r}")
        times, least, most = (
            nameless.pop(told, 0),
            *(
                sum(count for name, count in each.items() if name[:_MAX_NAME_CHARS] == short)
                for each in (strangers, changed)
            ),
        )
        assert least <= times <= most, f"{short!r}: {least} to {most}, and {times} told"
    past = sum(count for told, count in nameless.items() if told.startswith("timeout is "))
    assert past == num_deadlines == nameless.total(), nameless


def _is_past(action: pb.SetDeadline) -> bool:
    timeout = action.timeout
    return action.HasField("timeout") and timeout.seconds + timeout.nanos * 1e-9 < 0
