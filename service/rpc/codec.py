"""Between protobuf messages and the service's own words: pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, assert_never, overload

from google.protobuf.struct_pb2 import Struct, Value

from cadenza.service.detokenizer import encodable
from cadenza.service.events import (
    Admitted,
    Delta,
    Echo,
    Event,
    Finished,
    FinishReason,
    Notice,
    Parked,
    PositionLogprobs,
    Preempted,
    PromptScored,
    Resumed,
    TokenLogprob,
    Unparked,
)
from cadenza.service.generation import Generation
from cadenza.service.request import GenerationRequest
from cadenza.service.rpc import wire_format
from cadenza.service.template_variables import VariableBudget
from cadenza.v1 import generation_pb2 as pb

# With the 20 best tokens at each position, a part takes some 160 kB: a reader that lags gets its
# whole backlog as one delta, and clients accept no more than 4 MiB by default.
_MAX_POSITIONS = 256
_MAX_CHARS = 256 * 1024  # of one event; a MiB at most
_MAX_IDS = 256 * 1024  # of one event; somewhat more than a MiB at most
_CHUNK_BYTES = 1024 * 1024
BATCH_BYTES = 256 * 1024  # told at once; what tells more waits for room in between

_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}


def to_request(message: pb.GenerationInput) -> GenerationRequest:
    """The request as the client sent it: unset fields become None, and nothing is checked but the
    number of values in `chat_template_kwargs`, which are converted here.

    Repeated fields are not copied, so that millions of elements are refused by their number, with
    none looked at; the request keeps `message` alive, which must not change afterwards.

    Raises:
        InvalidRequest: there are too many of these values.
    """
    prompt = message.WhichOneof("prompt")
    chat = _chat(message.chat) if prompt == "chat" else {}
    return GenerationRequest(
        model=message.model or None,
        text=message.text if prompt == "text" else None,
        token_ids=message.token_ids.ids if prompt == "token_ids" else None,
        stop=message.stop or None,
        stop_token_ids=message.stop_token_ids or None,
        logit_bias=message.logit_bias or None,
        allowed_token_ids=message.allowed_token_ids or None,
        bad_words=message.bad_words or None,
        ignore_eos=message.ignore_eos,
        include_stop_str_in_output=message.include_stop_str_in_output,
        echo=message.echo,
        **chat,
        **_present(message),
    )


def _chat(chat: pb.Chat) -> dict[str, Any]:
    opens = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else None
    return {
        "messages": _Turns(chat.messages),
        "add_generation_prompt": opens,
        "continue_final_message": chat.continue_final_message,
        "chat_template_kwargs": _object(chat.chat_template_kwargs, VariableBudget()),
    }


def _object(struct: Struct, budget: VariableBudget) -> dict[str, Any]:
    budget.take_values(len(struct.fields))
    return {name: _plain(value, budget) for name, value in struct.fields.items()}


def _plain(value: Value, budget: VariableBudget) -> Any:
    """A protobuf value as JSON has it: all its numbers are floats, whole ones are meant as ints."""
    match value.WhichOneof("kind"):
        case "struct_value":
            return _object(value.struct_value, budget)
        case "list_value":
            budget.take_values(len(value.list_value.values))
            return [_plain(item, budget) for item in value.list_value.values]
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() else number
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
    return None


class _Turns(Sequence[Mapping[str, Any]]):
    """A chat's messages as OpenAI's, each made when it is looked at."""

    def __init__(self, turns: Sequence[pb.ChatMessage]) -> None:
        self._turns = turns

    def __len__(self) -> int:
        return len(self._turns)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        if isinstance(index, slice):
            return _Turns(self._turns[index])
        turn = self._turns[index]
        return {"role": turn.role, "content": turn.content}


_OF_CHAT = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")
_OPTIONAL = (
    "n",
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "skip_special_tokens",
    "truncate_prompt_tokens",
    "truncation_side",
    "add_special_tokens",
    "logprobs",
    "prompt_logprobs",
    "priority",
    "cache_salt",
    "tenant",
    "ttft_target_s",
    "tpot_target_s",
)


def _present(message: pb.GenerationInput) -> dict[str, Any]:
    """The optional fields that the client set, which may be to 0."""
    return {name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)}  # type: ignore[arg-type]


# of a request to generate, of an action, or of an administrator's call
_OF_ACTIONS = (
    "request_id",
    "after",
    "choice",
    "timeout",
    "credit",
    "stream_id",
    "resume",
    "max_requests",
    "profile",
    "name",
)  # the others are of a submit's `input`


def field_path(field: str) -> str:
    """Where a field stands in the client's action, or in the request of a `Generate`."""
    if field in _OF_ACTIONS:
        return field
    if field.startswith(("messages", *_OF_CHAT)):
        return f"input.chat.{field}"
    return f"input.{field}"


def accepted(request_id: str, generation: Generation) -> bytes:
    """The first event of a request."""
    body = pb.Accepted(
        id=generation.id,
        model=generation.model,
        prompt_tokens=generation.prompt_tokens,
        num_choices=generation.num_choices,
        queue_position=generation.queue_position,
    )
    return wire_format.event(pb.Event(request_id=request_id, accepted=body))


def encoded(request_id: str, event: Event) -> bytes:
    """One of a generation's events, or of the `parts` of one."""
    if isinstance(event, Delta):
        body = wire_format.tokens(
            event.choice,
            encodable(event.text),
            event.token_ids,
            [_position(position) for position in event.logprobs],
        )
        return wire_format.named(wire_format.encoded_name(request_id), body)
    return wire_format.event(_to_message(request_id, event))


def _to_message(request_id: str, event: Event) -> pb.Event:
    match event:
        case Finished():
            return pb.Event(request_id=request_id, choice_finished=_choice_finished(event))
        case PromptScored():
            scored = pb.PromptLogprobs(first=event.first, logprobs=map(_position, event.logprobs))
            return pb.Event(request_id=request_id, prompt_logprobs=scored)
        case Echo() | Delta():
            raise ValueError("an echo is sent in parts, which are deltas, and these as they are")
    return pb.Event(request_id=request_id, notice=_notice(event))


def _notice(notice: Notice) -> pb.Notice:
    match notice:
        case Admitted():
            return pb.Notice(admitted=pb.Admitted(cached_tokens=notice.cached_tokens))
        case Preempted():
            return pb.Notice(preempted=pb.Preempted(choice=notice.choice))
        case Resumed():
            return pb.Notice(resumed=pb.Resumed(choice=notice.choice))
        case Parked():
            return pb.Notice(parked=pb.Parked(choice=notice.choice))
        case Unparked():
            return pb.Notice(unparked=pb.Unparked(choice=notice.choice))
    assert_never(notice)


def finished(request_id: str, usage: pb.Usage) -> bytes:
    """The terminal event of a request whose choices have all finished."""
    return wire_format.event(pb.Event(request_id=request_id, finished=pb.Finished(usage=usage)))


def parts(event: Event) -> Iterable[Event]:
    """`event` in pieces of a size that may be sent, each with what fits of the text.

    What an echo has of the prompt are deltas without ids.
    """
    match event:
        case Delta():
            if event.logprobs or len(event.text) > _MAX_CHARS or len(event.token_ids) > _MAX_IDS:
                return _parts(event, event.token_ids)
        case Echo():
            return _parts(event, ())
        case PromptScored():
            return _scored_parts(event)
    return (event,)


def _scored_parts(scored: PromptScored) -> Iterator[PromptScored]:
    for start in range(0, len(scored.logprobs), _MAX_POSITIONS):
        part = scored.logprobs[start : start + _MAX_POSITIONS]
        yield PromptScored(first=start, logprobs=part)


def _parts(told: Delta | Echo, token_ids: Sequence[int]) -> Iterator[Delta]:
    most = _MAX_POSITIONS if told.logprobs else _MAX_IDS
    num_tokens = max(len(token_ids), len(told.logprobs))
    for part in range(max(1, -(-num_tokens // most), -(-len(told.text) // _MAX_CHARS))):
        cut = slice(part * most, (part + 1) * most)
        yield Delta(
            choice=told.choice,
            text=told.text[part * _MAX_CHARS : (part + 1) * _MAX_CHARS],
            token_ids=token_ids[cut],
            logprobs=told.logprobs[cut],
        )


def messages(events: Sequence[bytes], limit: int = _CHUNK_BYTES) -> Iterator[bytes]:
    """All encoded events in order, as messages of at most `limit` bytes or of one event."""
    whole = b"".join(events)
    if len(whole) <= limit:  # nearly always
        return iter((whole,) if whole else ())
    return map(b"".join, batches(events, limit))


def batches(events: Iterable[bytes], limit: int = BATCH_BYTES) -> Iterator[list[bytes]]:
    """All encoded events in order, in lists of at most `limit` bytes or of one event."""
    batch: list[bytes] = []
    num_bytes = 0
    for event in events:
        if batch and num_bytes + len(event) > limit:
            yield batch
            batch, num_bytes = [], 0
        batch.append(event)
        num_bytes += len(event)
    if batch:
        yield batch


def _position(position: PositionLogprobs) -> pb.PositionLogprobs:
    return pb.PositionLogprobs(
        sampled=_token_logprob(position.sampled),
        top=[_token_logprob(token) for token in position.top],
    )


def _token_logprob(token: TokenLogprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(
        token_id=token.token_id,
        text=encodable(token.text),
        utf8=token.utf8,
        logprob=token.logprob,
        rank=token.rank,
    )


def _choice_finished(event: Finished) -> pb.ChoiceFinished:
    message = pb.ChoiceFinished(
        choice=event.choice,
        reason=_REASONS[event.reason],
        completion_tokens=event.completion_tokens,
    )
    if isinstance(event.stop_reason, str):
        message.stop_string = event.stop_reason
    elif event.stop_reason is not None:
        message.stop_token_id = event.stop_reason
    return message
