"""A client's further variables of the chat template, counted before anything else looks at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cadenza.service import fields
from cadenza.service.errors import InvalidRequest

MAX_VARIABLES = 64
MAX_VALUES = 1000  # lists, objects and what is in them, all together
MAX_TEXT_CHARS = 1 << 16
_NAME = "chat_template_kwargs"
_MAX_NAME_CHARS = 64
_MAX_DEPTH = 16
# What a template gets from us, or what other servers take under these names
_RESERVED = frozenset(
    [
        *("messages", "tools", "documents", "tokenize", "chat_template"),
        *("add_generation_prompt", "continue_final_message"),
        *("bos_token", "eos_token", "pad_token", "unk_token"),
        *("raise_exception", "strftime_now"),
    ]
)


class VariableBudget:
    """How much of values and of text one client may still have in its variables."""

    def __init__(self) -> None:
        self._values = MAX_VALUES
        self._chars = MAX_TEXT_CHARS

    def take_values(self, count: int) -> None:
        """Count the elements of a list or an object, before any of them is looked at.

        Raises:
            InvalidRequest: they are too many.
        """
        self._values -= count
        if self._values < 0:
            raise InvalidRequest(f"{_NAME} must have at most {MAX_VALUES} values.", _NAME)

    def take_text(self, text: str) -> None:
        """Count a text, or the name of an entry.

        Raises:
            InvalidRequest: there is too much of it.
        """
        self._chars -= len(text)
        if self._chars < 0:
            raise InvalidRequest(
                f"{_NAME} must have at most {MAX_TEXT_CHARS} characters of text.", _NAME
            )


def check_variables(value: Any) -> Mapping[str, Any]:
    """A client's `chat_template_kwargs`; those that a template does not read change nothing.

    Raises:
        InvalidRequest: no object, too many values, too deep or too much text, a name that is the
            server's own, or text that is none.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{_NAME} must be an object.", _NAME)
    if len(value) > MAX_VARIABLES:
        raise InvalidRequest(f"{_NAME} must have at most {MAX_VARIABLES} entries.", _NAME)
    for key in value:
        fields.string(key, _NAME, max_chars=_MAX_NAME_CHARS)
        if key in _RESERVED:
            raise InvalidRequest(f"{_NAME} must not set {key}.", _NAME)
    _check(value, VariableBudget(), _MAX_DEPTH)
    return value


def _check(value: Any, budget: VariableBudget, depth: int) -> None:
    if depth < 0:
        raise InvalidRequest(f"{_NAME} is nested more than {_MAX_DEPTH} deep.", _NAME)
    if isinstance(value, str):
        budget.take_text(value)
        fields.string(value, _NAME)
    elif isinstance(value, Mapping):
        budget.take_values(len(value))
        for key, item in value.items():
            _check(key, budget, depth)
            _check(item, budget, depth - 1)
    elif isinstance(value, Sequence):
        budget.take_values(len(value))
        for item in value:
            _check(item, budget, depth - 1)
