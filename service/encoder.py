"""Tokenising off the loop: prompts, bad words, and ids back to text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from cadenza.service.choice import TextOptions
from cadenza.service.constraints import with_bad_words
from cadenza.service.errors import InvalidRequest
from cadenza.service.prompt import Prompt, truncated
from cadenza.service.request import Former
from cadenza.service.tokenizer import Tokenizer
from cadenza.service.validation import CheckedRequest
from cadenza.wire.messages import Ready, Sampling

_THREADS = 2

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Encoder:
    """A tokenizer behind threads of its own. `close` when its loop ends."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="encode")

    async def prompt(self, request: CheckedRequest, ready: Ready) -> Sequence[int]:
        """The ids of the request's prompt, truncated where it says so.

        Raises:
            InvalidRequest: so many characters cannot fit the context, the model's template refuses
                the messages, or the model does not know a token of the tokenizer's.
        """
        prompt = request.prompt
        if prompt.token_ids is not None and prompt.former is None:
            return prompt.token_ids
        max_chars = ready.max_model_len * self._tokenizer.max_chars_per_token
        if prompt.num_chars > max_chars:
            raise InvalidRequest(
                f"The prompt has {prompt.num_chars} characters, which cannot fit the model's "
                f"context of {ready.max_model_len} tokens.",
                prompt.field,
            )
        room = ready.max_model_len - request.least_room
        ids = await self._aside(self._encoded, prompt, max_chars, room)
        # Where a tokenizer was given tokens that the model has no rows for
        if (
            self._tokenizer.vocab_size > ready.vocab_size
            and max(ids, default=0) >= ready.vocab_size
        ):
            raise InvalidRequest(
                f"The prompt has token {max(ids)}, but the model knows {ready.vocab_size} alone.",
                prompt.field,
            )
        return ids

    async def options(self, request: CheckedRequest, ids: Sequence[int]) -> TextOptions:
        """What of the request's tokens is told as text, with what it echoes of a prompt's `ids`."""
        if request.text.echo is None:
            return request.text
        return replace(request.text, echo=await self._echo(request, ids))

    async def _echo(self, request: CheckedRequest, ids: Sequence[int]) -> str:
        prompt = request.prompt
        if prompt.messages is not None:
            last = prompt.messages[-1]
            return str(last["content"]) if last["role"] == "assistant" else ""
        if prompt.text is not None and prompt.truncation is None and prompt.former is None:
            return prompt.text
        return await self._aside(self._tokenizer.decode, ids)

    async def sampling(self, request: CheckedRequest, ready: Ready) -> Sampling:
        """The request's settings, with the ids of its bad words.

        Raises:
            InvalidRequest: they may leave no token to draw.
        """
        if not request.bad_words:
            return request.sampling
        return await self._aside(self._with_bad_words, request, ready.vocab_size)

    async def text(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens as they are written."""
        return await self._aside(self._tokenizer.decode, ids)

    async def names(self, ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary writes it."""
        return await self._aside(self._tokenizer.names, ids)

    def close(self) -> None:
        """Let go of the threads. Running encodes finish on their own."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _aside(
        self,
        work: Callable[_Parameters, _Result],
        *arguments: _Parameters.args,
        **named: _Parameters.kwargs,
    ) -> _Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: work(*arguments, **named))

    def _encoded(self, prompt: Prompt, max_chars: int, room: int) -> Sequence[int]:
        tokenizer = self._tokenizer
        if prompt.messages is not None:
            # What a template adds to short messages must not count against them
            template = tokenizer.template
            bound = max_chars + (len(template.source) if template else 0)
            ids = self._encoded_messages(prompt, prompt.messages, bound)
        elif prompt.text is not None:
            ids = tokenizer.encode_text(prompt.text, opened=prompt.add_special_tokens)
        else:
            ids = [*(prompt.token_ids or ())]
        if prompt.former is not None:
            ids = [*_before(prompt.former, prompt), *ids]
        if prompt.truncation is None:
            return ids
        is_opened = prompt.add_special_tokens or prompt.former is not None
        opening = tokenizer.num_opening(ids) if is_opened else 0
        return truncated(ids, prompt.truncation, room, opening)

    def _encoded_messages(
        self, prompt: Prompt, messages: Sequence[Mapping[str, Any]], max_chars: int
    ) -> list[int]:
        if prompt.former is not None:
            return self._tokenizer.encode_next_messages(
                messages, max_chars=max_chars, options=prompt.chat
            )
        return self._tokenizer.encode_messages(
            messages, max_chars=max_chars, options=prompt.chat, opened=prompt.add_special_tokens
        )

    def _with_bad_words(self, request: CheckedRequest, vocab_size: int) -> Sampling:
        encode = self._tokenizer.encode_word
        words = [ids for word in request.bad_words for ids in encode(word)]
        return with_bad_words(request.sampling, words, vocab_size)


def _before(former: Former, prompt: Prompt) -> Sequence[int]:
    """The former request's tokens, of which a chat's template writes itself what ends a turn."""
    if former.turn_ended and prompt.messages is not None:
        return former.token_ids[:-1]
    return former.token_ids
