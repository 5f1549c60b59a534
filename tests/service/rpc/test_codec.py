"""Requests in, events out: field by field."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cadenza.service.errors import InvalidRequest
from cadenza.service.events import (
    Admitted,
    Delta,
    Echo,
    Event,
    Finished,
    FinishReason,
    Parked,
    PositionLogprobs,
    Preempted,
    Resumed,
    TokenLogprob,
    Unparked,
)
from cadenza.service.limits import Limits
from cadenza.service.request import GenerationRequest
from cadenza.service.rpc import codec
from cadenza.service.validation import check
from cadenza.v1 import generation_pb2 as pb
from cadenza.wire.arrays import pack_ids
from cadenza.wire.messages import Ready

READY = Ready(
    max_model_len=256,
    vocab_size=300,
    eos_token_ids=(1,),
    num_blocks=64,
    num_host_blocks=0,
    block_size=16,
    max_num_seqs=4,
    max_num_batched_tokens=256,
    device="cpu",
    dtype="float32",
    load_s=0.1,
)


def told(request_id: str, event: Event) -> pb.Event:
    """An event as its reader gets it."""
    [sent] = pb.SessionResponse.FromString(codec.encoded(request_id, event)).events
    return sent


def test_what_the_client_left_out_is_left_to_the_defaults():
    assert codec.to_request(pb.GenerationInput()) == GenerationRequest(
        ignore_eos=False, include_stop_str_in_output=False, echo=False
    )


def test_every_field_reaches_the_request():
    message = pb.GenerationInput(
        model="m",
        text="hi",
        n=2,
        max_tokens=5,
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
        repetition_penalty=1.1,
        seed=-(2**63),
        stop=["a", "b"],
        stop_token_ids=[3, 4],
        ignore_eos=True,
        logprobs=3,
        priority=-1,
        cache_salt="s",
        tenant="t",
        ttft_target_s=0.5,
        tpot_target_s=0.05,
        logit_bias={5: -1.5, 6: 2},
        allowed_token_ids=[5, 6],
        bad_words=["w"],
        min_tokens=2,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        truncate_prompt_tokens=-1,
        truncation_side="right",
        add_special_tokens=False,
        echo=True,
        prompt_logprobs=0,
    )
    unset = {field.name for field in message.DESCRIPTOR.fields} - {
        field.name for field, _ in message.ListFields()
    }

    assert unset == {"token_ids", "chat"}
    assert codec.to_request(message) == GenerationRequest(
        model="m",
        text="hi",
        n=2,
        max_tokens=5,
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
        repetition_penalty=1.1,
        seed=-(2**63),
        stop=["a", "b"],
        stop_token_ids=[3, 4],
        ignore_eos=True,
        logprobs=3,
        priority=-1,
        cache_salt="s",
        tenant="t",
        ttft_target_s=0.5,
        tpot_target_s=0.05,
        logit_bias={5: -1.5, 6: 2.0},
        allowed_token_ids=[5, 6],
        bad_words=["w"],
        min_tokens=2,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        truncate_prompt_tokens=-1,
        truncation_side="right",
        add_special_tokens=False,
        echo=True,
        prompt_logprobs=0,
    )


@pytest.mark.parametrize(
    "field",
    [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "seed",
        "max_tokens",
        "min_tokens",
    ],
)
def test_zero_is_a_value_and_not_an_absence(field):
    assert getattr(codec.to_request(pb.GenerationInput(**{field: 0})), field) == 0


def test_an_empty_salt_and_an_empty_text_are_values():
    request = codec.to_request(pb.GenerationInput(text="", cache_salt=""))

    assert request.text == ""
    assert request.cache_salt == ""


def test_token_ids_are_one_kind_of_prompt():
    request = codec.to_request(pb.GenerationInput(token_ids=pb.TokenIds(ids=[1, 2])))

    assert isinstance(request.token_ids, Sequence)
    assert list(request.token_ids) == [1, 2]
    assert pack_ids(request.token_ids) == pack_ids([1, 2])
    assert request.text is None
    assert request.messages is None


def test_a_chat_is_one_kind_of_prompt():
    turn = pb.ChatMessage(role="user", content="hi")
    request = codec.to_request(pb.GenerationInput(chat=pb.Chat(messages=[turn])))

    assert request.messages is not None
    assert list(request.messages) == [{"role": "user", "content": "hi"}]
    assert request.text is None
    assert request.token_ids is None


class Untouchable(Sequence[Any]):
    """Has a length, and no element that may be looked at."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("an element was visited")


REPEATED = ("stop", "stop_token_ids", "bad_words", "allowed_token_ids", "logit_bias")


class Stand:
    """A `GenerationInput` of the given fields and no others."""

    def __init__(self, prompt: str, **given: Any) -> None:
        self._prompt = prompt
        self._given = {"text": "hi", **dict.fromkeys(REPEATED, ()), **given}

    def WhichOneof(self, oneof: str) -> str:
        return self._prompt

    def HasField(self, name: str) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return self._given.get(name)


CHAT = SimpleNamespace(
    messages=Untouchable(),
    HasField=lambda name: False,
    continue_final_message=False,
    chat_template_kwargs=pb.Chat().chat_template_kwargs,
)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("prompt", Stand("token_ids", token_ids=SimpleNamespace(ids=Untouchable()))),
        ("messages", Stand("chat", chat=CHAT)),
        ("stop", Stand("text", stop=Untouchable())),
        ("stop_token_ids", Stand("text", stop_token_ids=Untouchable())),
        ("bad_words", Stand("text", bad_words=Untouchable())),
        ("allowed_token_ids", Stand("text", allowed_token_ids=Untouchable())),
    ],
    ids=["token_ids", "chat", "stop", "stop_token_ids", "bad_words", "allowed_token_ids"],
)
def test_too_many_elements_are_refused_by_their_number(field, message):
    with pytest.raises(InvalidRequest) as caught:
        check(codec.to_request(message), Limits(), READY)

    assert caught.value.field == field


def test_a_chat_says_how_it_is_rendered():
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="x")])
    assert codec.to_request(pb.GenerationInput(chat=chat)).add_generation_prompt is None

    chat.add_generation_prompt = False
    chat.continue_final_message = True
    variables = {"on": False, "n": 5, "x": 0.5, "s": "a", "none": None, "l": [1, {"a": "b"}]}
    chat.chat_template_kwargs.update(variables)
    request = codec.to_request(pb.GenerationInput(chat=chat))

    assert request.add_generation_prompt is False
    assert request.continue_final_message is True
    assert request.chat_template_kwargs == variables
    assert type(request.chat_template_kwargs["n"]) is int


@pytest.mark.parametrize(
    "variables",
    [
        {"x": [1] * 1000},
        {"x": {str(number): 1 for number in range(1000)}},
        {"x": [[1] * 499, [1] * 499]},
        {str(number): 1 for number in range(1001)},
    ],
)
def test_variables_are_counted_before_they_are_converted(variables):
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="x")])
    chat.chat_template_kwargs.update(variables)
    with pytest.raises(InvalidRequest) as caught:
        codec.to_request(pb.GenerationInput(chat=chat))

    assert caught.value.field == "chat_template_kwargs"


CONSTRAINTS = {
    "logit_bias": [{300: 1}, {2**32 - 1: 1}, {5: math.nan}, {5: math.inf}, {5: 100.5}],
    "allowed_token_ids": [[300], [5, 2**32 - 1]],
    "bad_words": [[""], ["a", ""], ["x" * 257]],
    "min_tokens": [-1, 6],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field in CONSTRAINTS for value in CONSTRAINTS[field]]
)
def test_a_wrong_constraint_is_refused_by_its_name(field, value):
    message = pb.GenerationInput(text="hi", max_tokens=5, **{field: value})
    with pytest.raises(InvalidRequest) as caught:
        check(codec.to_request(message), Limits(), READY)

    assert caught.value.field == field
    assert field in caught.value.message


PENALTIES = {
    "presence_penalty": [2.1, -2.1, math.nan, math.inf, -math.inf],
    "frequency_penalty": [2.1, -2.1, math.nan, math.inf, -math.inf],
    "repetition_penalty": [0.0, -1.0, 101.0, 1e-320, math.nan, math.inf],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field in PENALTIES for value in PENALTIES[field]]
)
def test_a_penalty_out_of_its_range_is_refused_by_its_name(field, value):
    message = pb.GenerationInput(text="hi", **{field: value})
    with pytest.raises(InvalidRequest) as caught:
        check(codec.to_request(message), Limits(), READY)

    assert caught.value.field == field
    assert field in caught.value.message


def test_repeated_fields_have_a_number_that_limits_can_be_held_against():
    message = pb.GenerationInput(stop=["a"] * 99, chat=pb.Chat(messages=[pb.ChatMessage()] * 9))
    request = codec.to_request(message)

    assert isinstance(request.stop, Sequence)
    assert isinstance(request.messages, Sequence)
    assert (len(request.stop), len(request.messages)) == (99, 9)


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("top_p", "input.top_p"),
        ("messages[0].role", "input.chat.messages[0].role"),
        ("chat_template_kwargs", "input.chat.chat_template_kwargs"),
        ("request_id", "request_id"),
    ],
)
def test_fields_are_named_by_their_path(field, path):
    assert codec.field_path(field) == path


def test_tokens_carry_text_ids_and_logprobs():
    sampled = TokenLogprob(5, "h", b"h", -0.5)
    best = TokenLogprob(6, "\ufffd", b"\xe2", -math.inf)
    delta = Delta(
        choice=1,
        text="hé",
        token_ids=[5],
        logprobs=[PositionLogprobs(sampled=sampled, top=[sampled, best])],
    )
    tokens = told("r", delta).tokens

    assert (tokens.choice, tokens.text, list(tokens.token_ids)) == (1, "hé", [5])
    (position,) = tokens.logprobs
    assert position.sampled == pb.TokenLogprob(token_id=5, text="h", utf8=b"h", logprob=-0.5)
    assert position.top[0] == position.sampled
    assert (position.top[1].utf8, position.top[1].logprob) == (b"\xe2", -math.inf)


@pytest.mark.parametrize("kind", ["delta", "echo"])
@pytest.mark.parametrize(("num_chars", "num_ids"), [(0, 0), (10, 2), (700_000, 2), (3, 600_000)])
def test_the_parts_of_what_is_long_fit_a_message_and_join_to_it(kind, num_chars, num_ids):
    text, ids = "漢" * num_chars, [1_000_000] * (num_ids if kind == "delta" else 0)
    told = (
        Delta(choice=1, text=text, token_ids=ids) if kind == "delta" else Echo(choice=1, text=text)
    )
    parts = list(codec.parts(told))

    assert "".join(part.text for part in parts) == text
    assert [token for part in parts for token in part.token_ids] == ids
    assert {part.choice for part in parts} == {1}
    assert len(parts) == max(1, -(-num_chars // 262_144), -(-len(ids) // 262_144))
    assert max(len(codec.encoded("a", part)) for part in parts) < 2 << 20


@pytest.mark.parametrize("num_tokens", [0, 1, 256, 257, 1000])
def test_the_parts_of_a_delta_join_to_the_whole(num_tokens):
    positions = [
        PositionLogprobs(sampled=TokenLogprob(token, "x", b"x", -1.0), top=[])
        for token in range(num_tokens)
    ]
    delta = Delta(choice=2, text="text", token_ids=list(range(num_tokens)), logprobs=positions)
    parts = list(codec.parts(delta))

    assert {part.choice for part in parts} == {2}
    assert "".join(part.text for part in parts) == "text"
    assert [token for part in parts for token in part.token_ids] == delta.token_ids
    assert [position for part in parts for position in part.logprobs] == positions
    assert max(len(part.logprobs) for part in parts) <= 256


def test_messages_keep_the_order_and_the_limit():
    names = ["x" * size for size in (10, 10, 100, 1, 1)]
    events = [codec.encoded(name, Parked(choice=0)) for name in names]
    messages = [pb.GenerateResponse.FromString(each) for each in codec.messages(events, limit=40)]

    assert [len(message.events) for message in messages] == [2, 1, 2]
    assert [event.request_id for message in messages for event in message.events] == names
    assert list(codec.messages([], limit=40)) == []


def test_a_lone_surrogate_becomes_a_replacement_character():
    event = told("r", Delta(choice=0, text="a\udcafé😀\ud800", token_ids=[1]))

    assert event.tokens.text == "a\ufffdé😀\ufffd"


@pytest.mark.parametrize("notice", [Preempted, Resumed, Parked, Unparked])
def test_a_notice_tells_what_the_scheduler_did_with_which_choice(notice):
    kind = notice.__name__.lower()

    event = told("r", notice(choice=2))

    assert event.request_id == "r"
    assert event.notice.WhichOneof("notice") == kind
    assert getattr(event.notice, kind).choice == 2


def test_an_admission_tells_how_much_was_cached():
    event = told("r", Admitted(cached_tokens=0))

    assert event.notice.WhichOneof("notice") == "admitted"
    assert told("r", Admitted(cached_tokens=8)).notice.admitted.cached_tokens == 8


@pytest.mark.parametrize(
    ("stop_reason", "kind", "value"),
    [(None, None, None), ("END", "stop_string", "END"), (0, "stop_token_id", 0)],
)
def test_a_choice_tells_what_stopped_it(stop_reason, kind, value):
    event = Finished(
        choice=1, reason=FinishReason.STOP, stop_reason=stop_reason, completion_tokens=9
    )
    message = told("r", event).choice_finished

    assert (message.choice, message.completion_tokens) == (1, 9)
    assert message.reason == pb.FINISH_REASON_STOP
    assert message.WhichOneof("stop_reason") == kind
    assert kind is None or getattr(message, kind) == value


@pytest.mark.parametrize("reason", FinishReason)
def test_every_finish_reason_has_a_name_in_the_proto(reason):
    event = Finished(choice=0, reason=reason, stop_reason=None, completion_tokens=1)
    sent = told("r", event).choice_finished.reason

    assert pb.FinishReason.Name(sent) == f"FINISH_REASON_{reason.name}"
