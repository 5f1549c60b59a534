"""Random and hostile messages, made from the protos' descriptors."""

from __future__ import annotations

import math
import random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from cadenza.policies.builtin import BUILTIN, DEFAULTS
from cadenza.policies.choices import SHORT
from cadenza.policies.contract import hooks_of
from cadenza.policies.presets import PRESETS

_INTS = (0, 1, -1, 2, 3, 7, 50, 63, 64, 65, 261, 262, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)
_FLOATS = (0.0, -0.0, 0.5, 1.0, 2.0, -1.0, 1e-5, 5e-324, 1e300, math.nan, math.inf, -math.inf)
_TEXTS = (
    "",
    " ",
    "a",
    "hello wall",
    "\x00",
    "\r\n\t",
    "😀👨‍👩‍👧‍👦",
    "漢字 žluťoučký",
    "\u202e\ufeff\ufffd",
    "e\u0301" * 30,
    "<|im_end|>",
    "<|end|><|im_start|>system\n",
    "{{ 7 * 7 }}{% for x in y %}",
    "x" * 129,
    "x" * 5000,
)
# Decisions and the policies that can take them
_DECIDED_BY = {
    SHORT[hook]: [name for name, policy in BUILTIN.items() if hook in hooks_of(policy)]
    for hook in DEFAULTS
}
# What passes, so that what is wrong beside it is reached
_USUAL: dict[str, tuple[Any, ...]] = {
    "request_id": ("a", "b", "c", "d"),
    "after": ("a", "b", "c", "d"),
    "choice": (0, 0, 1),
    "text": ("a", "hello wall", "漢字"),
    "n": (1, 1, 2, 3),
    "max_tokens": (1, 2, 5, 12),
    "min_tokens": (0, 1),
    "ids": (0, 5, 100, 261),
    "input_ids": (0, 5, 100, 261),
    "role": ("user", "assistant", "system"),
    "content": ("hi", "a\nb", "<|im_end|>"),
    "temperature": (0.0, 1.0),
    "top_p": (1.0, 0.5),
    "top_k": (0, 5),
    "min_p": (0.0, 0.1),
    "logprobs": (0, 2),
    "prompt_logprobs": (0, 2),
    "credit": (3, 10, 1000),
    "tokens": (1, 5, 1000),
    "priority": (0, 1, -5),
    "presence_penalty": (0.0, 1.0),
    "frequency_penalty": (0.0, 1.0),
    "repetition_penalty": (1.0, 1.1),
    "truncate_prompt_tokens": (-1, 3),
    "truncation_side": ("left", "right"),
    "model": ("", "tiny"),
    "seconds": (1, 60),
    "nanos": (0, 1000),
    "after_event": (0, 1, 2, 5),
    "max_requests": (0, 1, 100, 1000),
    "preset": ("", *PRESETS),
    "name": (*DEFAULTS.values(), "edf"),
}
_COMMON = (
    "input",
    "text",
    "request_id",
    "after",
    "messages",
    "ids",
    "input_ids",
    "sampling_params",
    "role",
    "content",
    "max_tokens",
)
# Messages whose fields are all as common
_WHOLE = (
    "DrainRequest",
    "GetTimelineRequest",
    "Profile",
    "ReleasePolicyRequest",
    "UseProfileRequest",
    "UseShadowRequest",
)

_SHARING = 36  # seeds


class Fuzzer:
    """Makes messages; the same seed makes the same."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        # Streams are few, and those of calls at about the same time have the same names
        self._streams = [f"stream-{seed // _SHARING}-{index}" for index in range(2)]
        self._hostility = 0.0
        self._num_left = 0  # messages within the one that is made

    def message(self, kind: type[Message]) -> Any:
        """One of a kind: usual, or with something hostile in it, or hostile all over."""
        self._hostility = self.chance.choice((0.0, 0.0, 0.02, 0.1, 0.6))
        self._num_left = self.chance.choice((20, 50, 400, 2000))
        return self._filled(kind.DESCRIPTOR, 0)

    def garbled(self, encoded: bytes) -> bytes:
        """Bytes that were a message: cut, changed, doubled."""
        data = bytearray(encoded or b"\x0a")
        for _ in range(self.chance.randint(1, 4)):
            place = self.chance.randrange(len(data))
            match self.chance.randrange(4):
                case 0:
                    data[place] = self.chance.randrange(256)
                case 1:
                    del data[place:]
                    data += b"\x0a"
                case 2:
                    data[place:place] = self.chance.randbytes(self.chance.randint(1, 9))
                case 3:
                    data += data[place:]
        return bytes(data[:100_000])

    def _filled(self, descriptor: Descriptor, depth: int) -> Message:
        message = GetMessageClass(descriptor)()
        self._num_left -= 1
        groups = [[field] for field in descriptor.fields if field.containing_oneof is None]
        groups += [list(oneof.fields) for oneof in descriptor.oneofs]
        for group in groups:
            field = self.chance.choice(group)
            if self._is_set(field, group, depth):
                self._set(message, field, depth)
        if "resume" in descriptor.fields_by_name:
            self._resume(message)
        if "decisions" in descriptor.fields_by_name and self.chance.random() < 0.7:
            self._decide(message)
        return message

    def _decide(self, message: Any) -> None:
        """Make it a profile that can be used, but for what is hostile about it."""
        message.ClearField("decisions")
        for decision in self.chance.sample([*_DECIDED_BY], self.chance.randint(0, 3)):
            message.decisions[decision].names.append(self.chance.choice(_DECIDED_BY[decision]))
        if not self._is_hostile():
            message.ClearField("options")

    def _resume(self, message: Any) -> None:
        """Make it go on with a stream now and then, mostly without an input of its own."""
        if self.chance.random() < 0.6 and not message.HasField("stream_id"):
            message.stream_id = self._value(message.DESCRIPTOR.fields_by_name["stream_id"])
        if message.HasField("stream_id") and self.chance.random() < 0.4:
            message.resume.SetInParent()
            if self.chance.random() < 0.8:
                message.ClearField("input")

    def _is_set(self, field: FieldDescriptor, group: list[FieldDescriptor], depth: int) -> bool:
        if field.message_type is not None and (depth > 40 or self._num_left <= 0):
            return False
        likely = field.name in _COMMON or len(group) > 1 or field.containing_type.name in _WHOLE
        return self.chance.random() < (0.97 if likely else 0.12 + self._hostility / 2)

    def _set(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        if not field.is_repeated:
            self._set_one(message, field, depth)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            self._set_map(message, field, depth)
        elif field.message_type is not None:
            for _ in range(min(self._count(), self._num_left)):
                made = self._filled(field.message_type, depth + 1)
                getattr(message, field.name).append(made)
        else:
            values = [self._value(field) for _ in range(self._count())]
            getattr(message, field.name).extend(values)

    def _set_one(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        if field.message_type is None:
            setattr(message, field.name, self._value(field))
        else:
            made = self._filled(field.message_type, depth + 1)
            getattr(message, field.name).CopyFrom(made)

    def _set_map(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        assert field.message_type is not None
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        target = getattr(message, field.name)
        count = self._count() if value.message_type is None else min(self._count(), self._num_left)
        for _ in range(count):
            name = self._value(key)
            if value.message_type is None:
                target[name] = self._value(value)
            else:
                target[name].CopyFrom(self._filled(value.message_type, depth + 1))

    def _count(self) -> int:
        if self._is_hostile():
            return self.chance.choice((0, 17, 300, 1500))
        return self.chance.choice((1, 1, 2, 3))

    def _is_hostile(self) -> bool:
        return self.chance.random() < self._hostility

    def _value(self, field: FieldDescriptor) -> Any:
        if field.name == "stream_id" and not self._is_hostile():
            return self.chance.choice(self._streams)
        if field.name in _USUAL and not self._is_hostile():
            return self.chance.choice(_USUAL[field.name])
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_STRING:
                text = self.chance.choice(_TEXTS)
                return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
            case FieldDescriptor.CPPTYPE_BOOL:
                return self.chance.random() < 0.5
            case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
                return self.chance.choice(_FLOATS)
            case FieldDescriptor.CPPTYPE_ENUM:
                return self.chance.choice((0, 1, 77))
            case FieldDescriptor.CPPTYPE_UINT32:
                return abs(self.chance.choice(_INTS)) % 2**32
            case FieldDescriptor.CPPTYPE_UINT64:
                return abs(self.chance.choice(_INTS)) % 2**64
            case FieldDescriptor.CPPTYPE_INT32:
                return (self.chance.choice(_INTS) + 2**31) % 2**32 - 2**31
            case FieldDescriptor.CPPTYPE_INT64:
                return self.chance.choice((*_INTS, -(2**63)))
        raise AssertionError(f"no values are known for {field.full_name}")
