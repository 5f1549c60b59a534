"""One call's answer in OpenAI's form: what chunks and whole answers are made of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from cadenza.service.events import Delta, Echo, Event, Finished, Notice, PromptScored
from cadenza.service.generation import Generation
from cadenza.service.http import sse
from cadenza.service.http.call import Call
from cadenza.service.http.dialect import ChoiceState, Dialect
from cadenza.service.http.logprobs import bounded, prompt_logprobs
from cadenza.service.http.merge import merge
from cadenza.service.http.notices import EVENT, noticed, queued
from cadenza.service.http.resumable import ByEvent
from cadenza.service.http.sse import EventStream, Named
from cadenza.service.http.usage import usage
from cadenza.service.token_texts import TokenTexts

_HOLE = "(text)"


class _Tap:
    """Writes the only choice's tokens to its connection. Implements `tap.Tap`."""

    __slots__ = ("_answer", "_around", "_connection", "_stream", "_texts")

    def __init__(self, answer: Answer, stream: EventStream, texts: TokenTexts) -> None:
        self._answer = answer
        self._stream = stream
        self._connection = stream.connection
        self._texts = texts.encoded(chunk_text)
        self._around: tuple[bytes, bytes] | None = None

    @property
    def way(self) -> None:
        return None

    def take_plain(self, token: int) -> bool:
        text = self._texts.find(token)
        if text is None or self._around is None or not self._connection.takes_more():
            return False
        if text:
            before, after = self._around
            self._connection.write_more(before + text + after)
        return True

    def told(self, tokens: Sequence[int]) -> None:
        self._answer.num_tokens += len(tokens)

    def take(self, token: int, text: str) -> bool:
        if not (self._stream.started and self._connection.takes_more()):
            return False
        said = self._answer.said(Delta(choice=0, text=text, token_ids=(token,)))
        self._around = self._answer.around()
        if said:
            self._connection.write_more(said)
        return True


def chunk_text(_: int, text: str) -> bytes:
    """A token's text in its chunk, as `token_texts.Encode`. Without text there is no chunk."""
    return sse.json(text) if text else b""


class Answer:
    """One call's answer as JSON, in chunks or whole, from the events of its generations."""

    def __init__(self, dialect: Dialect, call: Call, generations: Sequence[Generation]) -> None:
        self._dialect = dialect
        self._call = call
        self._generations = generations
        self._choices: dict[tuple[int, int], ChoiceState] = {}
        self.num_tokens = 0  # told so far, of all choices
        self._tells_text = not (call.continuous_usage or call.token_ids)  # and nothing else
        self._id = dialect.id_prefix + generations[0].call_id
        self._created = int(time.time())
        for prompt, generation in enumerate(generations):
            for choice in range(generation.num_choices):
                self._choices[prompt, choice] = ChoiceState(index=len(self._choices))

    def tap(self, stream: EventStream) -> None:
        """Pass on at once the tokens that come while the reader of `chunks` waits.

        Those of several choices are left to the reader, who sends what a step brings in one write.
        """
        if len(self._choices) > 1:
            return
        self._generations[0].tap(lambda _, texts: _Tap(self, stream, texts))

    def said(self, delta: Delta) -> bytes:
        """What is sent of the only choice's delta, perhaps nothing."""
        return self._said(0, delta)

    def around(self) -> tuple[bytes, bytes] | None:
        """What is around a text of the only choice, as JSON, in its chunk. None: not yet known."""
        [choice] = self._choices.values()
        return choice.around

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Every chunk as an event, those of one wake-up together; never nothing."""
        if self._call.notices:
            places = [generation.queue_position for generation in self._generations]
            told = [self._notice(queued(prompt, place)) for prompt, place in enumerate(places)]
            yield b"".join(map(sse.encoded, told))
        async with aclosing(self._batches()) as batches:
            async for prompt, batch in batches:
                if chunks := self._encoded(prompt, batch):
                    yield chunks
        if self._call.include_usage:
            yield sse.encoded(self._last())

    async def told_by_event(self) -> AsyncGenerator[list[ByEvent], None]:
        """As `chunks`, with the event that each part, perhaps nothing, is made of."""
        if self._call.notices:
            place = self._generations[0].queue_position
            yield [(None, sse.encoded(self._notice(queued(0, place))))]
        async with aclosing(self._batches()) as batches:
            async for prompt, batch in batches:
                yield [(event, self._said(prompt, event)) for event in batch]
        if self._call.include_usage:
            yield [(None, sse.encoded(self._last()))]

    def _encoded(self, prompt: int, batch: list[Event]) -> bytes:
        return b"".join([self._said(prompt, event) for event in batch])

    async def _batches(self) -> AsyncGenerator[tuple[int, list[Event]], None]:
        """What the generations tell, in batches that are short work, others' turns between them."""
        async with aclosing(merge(self._generations)) as batches:
            async for prompt, batch in batches:
                for index, part in enumerate(bounded(batch)):
                    if index:
                        await asyncio.sleep(0)
                    yield prompt, part

    async def whole(self) -> Mapping[str, Any]:
        """The answer once it is complete."""
        async with aclosing(self._batches()) as batches:
            async for prompt, batch in batches:
                for event in batch:
                    if isinstance(event, PromptScored):
                        await self._score(prompt, event)
                    else:
                        self._keep(prompt, event)
        choices = list(self._choices.values())
        whole = {
            **self._head(self._dialect.object),
            "choices": [self._dialect.whole(choice) for choice in choices],
            "usage": self._usage(),
        }
        if self._call.token_ids:
            for told, (prompt, _), choice in zip(
                whole["choices"], self._choices, choices, strict=True
            ):
                told["token_ids"] = choice.token_ids
                self._tell_prompt(whole, told, prompt)
        if not self._dialect.scores_choices and choices[0].prompt_logprobs is not None:
            whole["prompt_logprobs"] = choices[0].prompt_logprobs
        return whole

    async def _score(self, prompt: int, scored: PromptScored) -> None:
        told = await prompt_logprobs(scored)
        for (its_prompt, _), choice in self._choices.items():
            if its_prompt == prompt:
                choice.prompt_logprobs = told

    def _keep(self, prompt: int, event: Event) -> None:
        if isinstance(event, Delta):
            choice = self._choices[prompt, event.choice]
            self.num_tokens += len(event.token_ids)
            choice.texts.append(event.text)
            choice.token_ids += event.token_ids
            if event.logprobs:
                self._dialect.keep_logprobs(choice, event.logprobs)
        elif isinstance(event, Finished):
            self._choices[prompt, event.choice].finished = event

    def _said(self, prompt: int, event: Event) -> bytes:
        """What is sent of an event, perhaps nothing."""
        if not isinstance(event, (Delta, Finished)):
            return b"".join(map(sse.encoded, self._notices(prompt, event)))
        choice = self._choices[prompt, event.choice]
        if isinstance(event, Delta):
            self.num_tokens += len(event.token_ids)
            if choice.begun and self._tells_text and not event.logprobs:
                return self._with_text(choice, event.text)
        return b"".join(map(sse.encoded, self._chunks(prompt, choice, event)))

    def _with_text(self, choice: ChoiceState, text: str) -> bytes:
        """The chunk of a delta that has nothing but text."""
        if not text:
            return b""
        if choice.around is None:
            delta = Delta(choice=choice.index, text=_HOLE, token_ids=())
            choice.around = sse.around(self._chunk(self._dialect.delta(choice, delta)), _HOLE)
        before, after = choice.around
        return before + sse.json(text) + after

    def _chunks(
        self, prompt: int, choice: ChoiceState, event: Delta | Finished
    ) -> list[dict[str, Any]]:
        said = []
        is_first = not choice.begun
        if is_first:
            choice.begun = True
            said.append(self._dialect.opening(choice))
        if isinstance(event, Finished):
            said.append(self._dialect.ending(choice, event))
        elif event.text or event.logprobs or (self._call.token_ids and event.token_ids):
            said.append(self._delta(choice, event))
        chunks = [self._chunk(part) for part in said if part is not None]
        if is_first and chunks and self._call.token_ids:
            self._tell_prompt(chunks[0], chunks[0]["choices"][0], prompt)
        return chunks

    def _delta(self, choice: ChoiceState, delta: Delta) -> dict[str, Any]:
        told = self._dialect.delta(choice, delta)
        if self._call.token_ids:
            told["token_ids"] = [*delta.token_ids]
        return told

    def _tell_prompt(self, answer: dict[str, Any], choice: dict[str, Any], prompt: int) -> None:
        """The prompt's ids, where the dialect tells of prompts."""
        holder = choice if self._dialect.scores_choices else answer
        holder["prompt_token_ids"] = [*self._generations[prompt].prompt]

    def _notices(self, prompt: int, event: Notice | PromptScored | Echo) -> list[Any]:
        if not self._call.notices or isinstance(event, PromptScored | Echo):
            return []
        return [
            self._notice(noticed(prompt, event, lambda choice: self._choices[prompt, choice].index))
        ]

    def _notice(self, told: Mapping[str, Any]) -> Named:
        return Named(EVENT, {**self._head(EVENT), **told})

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head(self._dialect.chunk_object), "choices": [choice]}
        if self._call.include_usage:
            chunk["usage"] = self._usage() if self._call.continuous_usage else None
        return chunk

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._generations[0].model,
        }

    def _last(self) -> Mapping[str, Any]:
        """The chunk that tells the usage."""
        return {**self._head(self._dialect.chunk_object), "choices": [], "usage": self._usage()}

    def _usage(self) -> dict[str, Any]:
        return usage(self._generations, self.num_tokens)
