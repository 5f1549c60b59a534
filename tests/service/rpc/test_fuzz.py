"""Whatever a client sends, the service answers it, and others are answered as before."""

from __future__ import annotations

import pytest
import uvloop
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from cadenza.v1 import generation_pb2 as pb
from tests.service.rpc.fuzz_checks import check_session
from tests.service.rpc.fuzzed_administration import METHODS
from tests.service.rpc.fuzzer import Fuzzer
from tests.service.rpc.fuzzing import fuzz

NUM, NUM_EXTRA = 1300, 6000  # calls


def test_random_and_hostile_calls_are_answered_and_harm_nobody(tell):
    seen = uvloop.run(fuzz(0, NUM))

    tell(f"{dict(seen)}")
    # It is about requests that are served as much as about those that are refused
    for kind in ("OK", "INVALID_ARGUMENT", "session OK", "finished", "failed 3", "failed 5"):
        assert seen[kind] > 20, kind
    # Streams are gone on with, and found to be others', by chance but by far often enough
    for kind in ("resumed", "ALREADY_EXISTS", "NOT_FOUND"):
        assert seen[kind] > 20, kind
    for method in METHODS:
        assert seen[f"{method} OK"] > 2, method


@pytest.mark.extra
def test_many_random_and_hostile_calls_are_answered_and_harm_nobody(tell):
    seen = uvloop.run(fuzz(NUM, NUM_EXTRA))

    tell(f"{dict(seen)}")


def test_the_same_seed_makes_the_same_messages():
    made = [
        [fuzzer.message(kind) for kind in (pb.SessionRequest, pb.GenerateRequest) for _ in range(9)]
        for fuzzer in (Fuzzer(7), Fuzzer(7))
    ]

    # Serialised, a NaN is like itself
    first, second = (
        [message.SerializeToString(deterministic=True) for message in each] for each in made
    )
    assert first == second


REQUESTS = {
    pb.GenerateRequest: 400,
    pb.SessionRequest: 400,
    **{GetMessageClass(method.input_type): 40 for method in METHODS.values()},
}  # and from how many seeds each is made


def test_every_field_of_a_request_is_set_now_and_then():
    seen: set[str] = set()
    for kind, num in REQUESTS.items():
        for seed in range(num):
            seen |= set_fields(Fuzzer(seed).message(kind))

    wanted = set().union(*(fields_of(kind.DESCRIPTOR) for kind in REQUESTS))
    assert seen == wanted
    assert {"cadenza.v1.Submit.stream_id", "cadenza.v1.Profile.preset"} <= wanted


def fields_of(descriptor: Descriptor, known: frozenset[str] = frozenset()) -> set[str]:
    """The full names of all fields of a message and of those within it."""
    if descriptor.full_name in known:
        return set()
    names = {field.full_name for field in descriptor.fields}
    for field in descriptor.fields:
        if field.message_type is not None:
            names |= fields_of(field.message_type, known | {descriptor.full_name})
    return names


def set_fields(message: Message) -> set[str]:
    """The full names of all fields that are set, in a message and within it."""
    names: set[str] = set()
    for field, value in message.ListFields():
        names.add(field.full_name)
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            names |= {each.full_name for each in field.message_type.fields}
            values = value.values()
            if field.message_type.fields_by_name["value"].message_type is None:
                continue
        else:
            values = value if field.is_repeated else [value]
        for each in values:
            names |= set_fields(each)
    return names


def submitted(request_id: str) -> pb.SessionRequest:
    return pb.SessionRequest(submit=pb.Submit(request_id=request_id))


def failed(request_id: str, message: str = "no") -> pb.Event:
    return pb.Event(request_id=request_id, failed=pb.Failed(code=3, message=message))


STRAY = pb.SessionRequest(cancel=pb.Cancel(request_id="z"))
UNKNOWN = failed("", "no request of this stream is called 'z'")
TWICE = failed("", "request_id 'a' is that of a live request on this stream")


@pytest.mark.parametrize(
    ("actions", "events"),
    [
        ([submitted("a"), STRAY], [failed("a"), UNKNOWN]),
        ([submitted("a"), submitted("a")], [TWICE, failed("a")]),
        ([submitted("")], [failed("", "request_id is required")]),
        ([pb.SessionRequest()], [failed("", "this server does not know the action")]),
        ([submitted("z"), STRAY], [failed("z")]),
    ],
)
def test_a_session_whose_actions_are_all_answered_passes(actions, events):
    check_session(actions, events, whole=True)
    for missing in range(len(events)):
        rest = events[:missing] + events[missing + 1 :]
        with pytest.raises(AssertionError):
            check_session(actions, rest, whole=True)
        with pytest.raises(AssertionError):
            check_session(actions, [*events, events[missing]], whole=True)


def test_a_request_without_any_event_is_seen_behind_the_failures_of_others():
    with pytest.raises(AssertionError, match="'a': 1 begun, 0 ended"):
        check_session([submitted("a"), STRAY, STRAY], [UNKNOWN, UNKNOWN], whole=True)
