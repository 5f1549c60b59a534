"""A request's fields, by their names over HTTP, as the message of gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cadenza.v1 import generation_pb2 as pb

_FIELDS = pb.GenerationInput.DESCRIPTOR.fields_by_name


class Unsayable(Exception):
    """The message has no room for a value: of another type, or one that means "not set"."""


def to_input(fields: Mapping[str, Any]) -> pb.GenerationInput:
    """The message that says just this; null is "not set", but of prompts there must be one.

    Raises:
        Unsayable: naming the field.
    """
    message = pb.GenerationInput()
    for name, value in fields.items():
        if value is None and name not in ("prompt", "messages"):
            continue
        try:
            _put(message, name, value)
        except (TypeError, ValueError, AttributeError) as error:
            raise Unsayable(name) from error
    return message


def _put(message: pb.GenerationInput, name: str, value: Any) -> None:
    match name:
        case "prompt" if isinstance(value, str):
            message.text = value
        case "prompt":
            message.token_ids.SetInParent()
            if value != []:
                _put_all(message.token_ids.ids, value)
        case "messages":
            message.chat.SetInParent()
            if not isinstance(value, list):
                raise ValueError(name)
            for turn in value:
                if set(turn) != {"role", "content"} or None in turn.values():
                    raise ValueError(name)
                message.chat.messages.add(**turn)
        case "chat_template_kwargs":
            message.chat.chat_template_kwargs.update(_of(dict, value))
        case "add_generation_prompt" | "continue_final_message":
            _put_one(message.chat, name, value)
        case "logit_bias":
            for token, bias in _of(dict, value).items():
                if token != str(int(token)) or isinstance(bias, bool):
                    raise ValueError(token)
                message.logit_bias[int(token)] = bias
        case _ if name in _FIELDS and _FIELDS[name].is_repeated:
            _put_all(getattr(message, name), [value] if isinstance(value, str) else value)
        case _:
            _put_one(message, name, value)


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind) or not value:
        raise ValueError("another type, or what means that it is not set")
    return value


def _put_one(message: Any, name: str, value: Any) -> None:
    """Protobuf takes true for 1, and 1 for true; 5 and 5.0 mean the same to it and to us."""
    setattr(message, name, value)
    told = getattr(message, name)
    if isinstance(told, float) and not isinstance(value, bool):
        return
    if type(told) is not type(value) or told != value or (name, value) == ("model", ""):
        raise ValueError(name)


def _put_all(field: Any, values: Any) -> None:
    field.extend(_of(list, values))
    if list(map(type, field)) != list(map(type, values)) or list(field) != values:
        raise ValueError("other values")
