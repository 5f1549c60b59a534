"""Events as bytes, ready to be joined to a message.

`GenerateResponse` and `SessionResponse` are both nothing but `repeated Event events = 1`, so that
an encoded message is its encoded events one after another, each behind field 1's tag and its
length. Every event is encoded once, where it is made, and a message of many rows is a join of
bytes. Building it of protobuf objects takes several times as long, and copies each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from cadenza.v1 import generation_pb2 as pb

_VARINT, _BYTES = 0, 2  # wire types


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


class _Varints(dict[int, bytes]):
    """Encoded numbers that occur again and again: token ids and lengths."""

    _MOST = 1 << 18

    def __missing__(self, number: int) -> bytes:
        encoded = _varint(number)
        if len(self) < self._MOST:
            self[number] = encoded
        return encoded


_varints = _Varints()


class _Heads(dict[int, bytes]):
    """What an event of so many bytes has before them in a message."""

    def __missing__(self, num_bytes: int) -> bytes:
        head = _EVENTS + _varint(num_bytes)
        if num_bytes < 1 << 12:
            self[num_bytes] = head
        return head


heads = _Heads()

_EVENTS = _tag(pb.SessionResponse.EVENTS_FIELD_NUMBER, _BYTES)
_REQUEST_ID = _tag(pb.Event.REQUEST_ID_FIELD_NUMBER, _BYTES)
_NUMBER = _tag(pb.Event.NUMBER_FIELD_NUMBER, _VARINT)
_TOKENS = _tag(pb.Event.TOKENS_FIELD_NUMBER, _BYTES)
_CHOICE = _tag(pb.Tokens.CHOICE_FIELD_NUMBER, _VARINT)
_TEXT = _tag(pb.Tokens.TEXT_FIELD_NUMBER, _BYTES)
_TOKEN_IDS = _tag(pb.Tokens.TOKEN_IDS_FIELD_NUMBER, _BYTES)  # packed
_LOGPROBS = _tag(pb.Tokens.LOGPROBS_FIELD_NUMBER, _BYTES)


def _field(tag: bytes, value: bytes) -> bytes:
    return b"%b%b%b" % (tag, _varints[len(value)], value)


def event(message: pb.Event) -> bytes:
    """Any event."""
    return _field(_EVENTS, message.SerializeToString())


def bare(encoded: bytes) -> bytes:
    """The `pb.Event` within what `event` or `tokens` made, encoded as it is alone."""
    start = len(_EVENTS)
    while encoded[start] > 0x7F:  # the length
        start += 1
    return encoded[start + 1 :]


def numbered(body: bytes, number: int) -> bytes:
    """An encoded `pb.Event` without a `number`, as the event of this one."""
    return b"%b%b%b" % (body, _NUMBER, _varint(number))


def tokens(
    choice: int,
    text: str,
    token_ids: Sequence[int],
    logprobs: Sequence[pb.PositionLogprobs] = (),
) -> bytes:
    """A `pb.Event` with `pb.Tokens`, without a `request_id`.

    Fields are in the order of their numbers, and those with default values are left out, as
    protobuf's own encoder does it.
    """
    body = _CHOICE + _varints[choice] if choice else b""
    if text:
        body += _field(_TEXT, text.encode())
    if token_ids:
        body += _field(_TOKEN_IDS, b"".join([_varints[token] for token in token_ids]))
    if logprobs:
        body += b"".join([_field(_LOGPROBS, each.SerializeToString()) for each in logprobs])
    return _field(_TOKENS, body)


def token(token_id: int, text: str) -> bytes:
    """The same of one token of a first choice, as `token_texts.Encode`."""
    return tokens(0, text, (token_id,))


def named(name: bytes, body: bytes) -> bytes:
    """An encoded `pb.Event` without a `request_id`, as an event of that of `encoded_name`."""
    return heads[len(name) + len(body)] + name + body


@lru_cache(1 << 12)
def encoded_name(request_id: str) -> bytes:
    """What the events of a request begin with."""
    return _field(_REQUEST_ID, request_id.encode()) if request_id else b""
