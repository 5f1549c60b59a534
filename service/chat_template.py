"""A model's chat template, rendered in jinja2's sandbox with what templates expect to find.

A template comes with the model, so its author is trusted about as far as the weights are: the
sandbox keeps it from Python's internals, and the output is bounded. Clients cannot send one.
The environment is that of transformers, which every published template is written for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cadenza.service.errors import InvalidRequest

# Stands where the last message ends while a chat is rendered. No valid text holds it.
_END = "\udc82"
# Stands for what the assistant has said, likewise, after a question that nobody will see.
_SAID = "\udc83"
_BEFORE = ({"role": "user", "content": "."}, {"role": "assistant", "content": _SAID})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How a chat is rendered, besides its messages."""

    add_generation_prompt: bool = True  # the assistant begins to speak
    continue_final_message: bool = False  # or goes on with the last message
    variables: Mapping[str, Any] = field(default_factory=dict)  # further ones of the template


USUAL = ChatOptions()


class ChatTemplate:
    """One compiled template. Rendering is pure, so that threads may share it."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        """Compile `source`. `special_tokens` become variables, such as `bos_token`.

        Raises:
            ValueError: the source is no jinja2 template.
        """
        self.source = source
        self.special_tokens = dict(special_tokens or {})
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_chars: int,
        options: ChatOptions = USUAL,
    ) -> str:
        """The prompt that asks for the assistant's next turn, or for more of the last message.

        Raises:
            InvalidRequest: the template refuses these messages, or its output is over `max_chars`.
        """
        if options.continue_final_message:
            messages = _ending_with_mark(messages)
        try:
            chat = "".join(self._bounded(messages, max_chars, options))
        except InvalidRequest:
            raise
        except Exception as error:
            # A template is code: what it raises on unexpected messages can be anything.
            reason = f"The model's chat template refused the messages: {error}"
            raise InvalidRequest(reason, "messages") from error
        return _up_to_mark(chat) if options.continue_final_message else chat

    def render_next(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_chars: int,
        options: ChatOptions = USUAL,
    ) -> str:
        """What comes after the assistant's words: the end of its turn, and `messages`.

        Raises:
            InvalidRequest: as `render`, or the template does not show what was said before.
        """
        chat = self.render([*_BEFORE, *messages], max_chars=max_chars, options=options)
        _, said, after = chat.rpartition(_SAID)
        if not said:
            raise InvalidRequest(
                "The model's chat template does not show what the assistant said before these "
                "messages, which therefore cannot be appended.",
                "messages",
            )
        return after

    def _bounded(
        self, messages: Sequence[Mapping[str, Any]], max_chars: int, options: ChatOptions
    ) -> list[str]:
        pieces: list[str] = []
        length = 0
        for piece in self._template.generate(
            {
                **options.variables,
                **self.special_tokens,
                "messages": messages,
                "tools": None,
                "add_generation_prompt": options.add_generation_prompt,
            }
        ):
            length += len(piece)
            if length > max_chars:
                raise InvalidRequest(
                    f"The messages are longer than {max_chars} characters once rendered, "
                    "more than the model's context can hold.",
                    "messages",
                )
            pieces.append(piece)
        return pieces


def _ending_with_mark(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    *before, last = messages
    return [*before, {**last, "content": last["content"] + _END}]


def _up_to_mark(chat: str) -> str:
    end = chat.rfind(_END)
    if end < 0:
        raise InvalidRequest(
            "The model's chat template does not show the last message, which therefore cannot be "
            "continued.",
            "continue_final_message",
        )
    return chat[:end].replace(_END, "")


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationBlock],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationBlock(Extension):
    """`{% generation %}` marks what to train on; for serving it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes for HTML, which no model was trained on
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
