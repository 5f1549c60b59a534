"""Events as bytes are what protobuf itself makes of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cadenza.service.rpc import wire_format
from cadenza.v1 import generation_pb2 as pb

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
IDS = st.lists(st.integers(0, 2**32 - 1), max_size=300)
LOGPROBS = st.lists(
    st.builds(
        lambda token, logprob: pb.PositionLogprobs(
            sampled=pb.TokenLogprob(token_id=token, logprob=logprob)
        ),
        st.integers(0, 2**32 - 1),
        st.floats(width=32, allow_nan=False),
    ),
    max_size=3,
)


@given(TEXTS, st.integers(0, 2**32 - 1), TEXTS, IDS, LOGPROBS)
def test_tokens_are_encoded_as_protobuf_encodes_them(request_id, choice, text, ids, logprobs):
    tokens = pb.Tokens(choice=choice, text=text, token_ids=ids, logprobs=logprobs)
    event = pb.Event(request_id=request_id, tokens=tokens)
    body = wire_format.tokens(choice, text, ids, logprobs)
    encoded = wire_format.named(wire_format.encoded_name(request_id), body)

    assert encoded == pb.SessionResponse(events=[event]).SerializeToString(deterministic=True)
    assert encoded == wire_format.event(event)


@given(st.lists(st.builds(lambda name: pb.Event(request_id=name), TEXTS), max_size=5))
def test_events_that_are_joined_are_a_message_of_either_kind(events):
    joined = b"".join(map(wire_format.event, events))

    assert pb.SessionResponse.FromString(joined) == pb.SessionResponse(events=events)
    assert pb.GenerateResponse.FromString(joined) == pb.GenerateResponse(events=events)


@given(TEXTS, TEXTS, IDS, st.integers(1, 2**64 - 1))
def test_an_encoded_event_gets_a_number_and_a_name(request_id, text, ids, number):
    event = pb.Event(tokens=pb.Tokens(text=text, token_ids=ids))
    body = wire_format.bare(wire_format.event(event))
    assert body == event.SerializeToString()

    event.number = number
    numbered = wire_format.numbered(body, number)
    assert numbered == event.SerializeToString()
    event.request_id = request_id
    named = wire_format.named(wire_format.encoded_name(request_id), numbered)
    assert pb.SessionResponse.FromString(named).events == [event]
