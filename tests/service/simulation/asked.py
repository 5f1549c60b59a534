"""What a client asks for, what it must get, and what it was told."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from cadenza.service.choice import Choice, TextOptions
from cadenza.service.events import Delta, Finished, FinishReason
from cadenza.service.metrics import Metrics
from cadenza.service.request_timer import RequestTimer
from cadenza.service.tokenizer import Tokenizer
from cadenza.testing.fake_runner import oracle
from cadenza.v1 import generation_pb2 as pb
from cadenza.wire.messages import Finished as RowEnd

from .engine import EOS, POISON

VOCABULARY = 248  # tokens that the fake model draws, and prompts are made of; the highest is drawn


class Whole(NamedTuple):
    """All of a choice."""

    tokens: Sequence[int]
    text: str
    end: tuple[FinishReason, str | int | None, int]  # with the tokens that count


@dataclass(eq=False, kw_only=True)
class Asked:
    """A request, in the words of its client."""

    prompt: Sequence[int]
    max_tokens: int
    n: int = 1
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    includes_stop: bool = False
    credit: int | None = None
    timeout_s: float | None = None
    extends: bool = False  # asks for more time at once
    starves: bool = False  # is granted nothing until its time is up
    tokenizer: Tokenizer

    @property
    def is_poisoned(self) -> bool:
        return POISON in self.prompt

    @property
    def message(self) -> pb.GenerationInput:
        return pb.GenerationInput(
            token_ids=pb.TokenIds(ids=self.prompt),
            max_tokens=self.max_tokens,
            n=self.n,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            include_stop_str_in_output=self.includes_stop,
        )

    @cached_property
    def wholes(self) -> Sequence[Whole]:
        """What each choice would get alone, of an engine that takes token after token."""
        return [self._alone(choice) for choice in range(self.n)]

    def _alone(self, index: int) -> Whole:
        options = TextOptions(stops=self.stop, include_stop=self.includes_stop)
        times = RequestTimer(Metrics()).choice()
        owner: Any = _Nobody()
        choice = Choice(index, 0, owner, self.tokenizer, self.prompt, options, times)
        for place, token in enumerate(oracle(self.prompt, self.max_tokens, index), 1):
            end = RowEnd.LENGTH if place == self.max_tokens else RowEnd.NOT
            if token in self.stop_token_ids:
                end = RowEnd.STOP_TOKEN
            elif token == EOS:
                end = RowEnd.EOS
            choice.on_token(token, int(end), None, 0.0)
            if choice.finished is not None:
                break
        events: list[Any] = []
        choice.drain(events)
        [delta, finished] = events
        assert isinstance(delta, Delta)
        assert isinstance(finished, Finished)
        end_told = (finished.reason, finished.stop_reason, finished.completion_tokens)
        return Whole(delta.token_ids, delta.text, end_told)


class _Nobody:
    """The owner of a choice that is read when it is over."""

    def choice_changed(self, choice: Choice, *, sampled: bool) -> None:
        pass

    def choice_stopped(self, choice: Choice) -> None:
        pass


@dataclass(eq=False)
class Told:
    """What one client has heard of one request, over however many connections."""

    asked: Asked
    tokens: dict[int, list[int]] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    ends: dict[int, tuple[FinishReason, str | int | None, int]] = field(default_factory=dict)
    is_accepted: bool = False
    is_finished: bool = False
    is_end_lost: bool = False  # with a connection: nobody knows but the client
    failed: pb.Failed | None = None
    granted: float = float("inf")
    number: int = 0  # of the last event, in a stream that can be resumed

    @property
    def is_over(self) -> bool:
        return self.is_finished or self.failed is not None

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens.values()))

    @property
    def offsets(self) -> list[int]:
        return [len(self.tokens.get(choice, ())) for choice in range(self.asked.n)]

    def hear(self, event: pb.Event) -> None:
        """Raises AssertionError for what must not come here."""
        kind = event.WhichOneof("event")
        if event.number:
            if event.number <= self.number:  # behind the same tokens as the place that was named
                assert kind != "tokens", "tokens are told twice"
                return
            assert event.number == self.number + 1, "an event is missing"
            self.number = event.number
        assert not self.is_over, f"{kind} after the end"
        match kind:
            case "accepted":
                assert not self.is_accepted, "accepted twice"
                self.is_accepted = True
            case "tokens":
                self._hear_tokens(event.tokens)
            case "choice_finished":
                self._hear_end(event.choice_finished)
            case "finished":
                assert len(self.ends) == self.asked.n, "finished before all choices are"
                completed = sum(end[2] for end in self.ends.values())
                assert event.finished.usage.completion_tokens == completed, "usage is wrong"
                self.is_finished = True
            case "failed":
                self.failed = event.failed

    def _hear_tokens(self, tokens: pb.Tokens) -> None:
        assert self.is_accepted, "tokens before the request is accepted"
        assert tokens.choice not in self.ends, "tokens after their choice's end"
        self.tokens.setdefault(tokens.choice, []).extend(tokens.token_ids)
        self.texts[tokens.choice] = self.texts.get(tokens.choice, "") + tokens.text
        assert self.num_tokens <= self.granted, "more than the reader takes"

    def _hear_end(self, end: pb.ChoiceFinished) -> None:
        assert end.choice not in self.ends, "a choice ends twice"
        kind = end.WhichOneof("stop_reason")
        stop = None if kind is None else getattr(end, kind)
        is_stop = end.reason == pb.FINISH_REASON_STOP
        reason = FinishReason.STOP if is_stop else FinishReason.LENGTH
        self.ends[end.choice] = reason, stop, end.completion_tokens

    def check(self) -> None:
        """Raises AssertionError unless it is what the request gets alone, as far as it goes."""
        for choice, whole in enumerate(self.asked.wholes):
            tokens, text = self.tokens.get(choice, []), self.texts.get(choice, "")
            if choice in self.ends:
                assert (tokens, text) == (whole.tokens, whole.text), "something is lost or changed"
                assert self.ends[choice] == whole.end, "it ends otherwise"
            else:
                assert tokens == whole.tokens[: len(tokens)], "tokens are changed"
                assert whole.text.startswith(text), "text is changed"


def ask(chance: random.Random, tokenizer: Tokenizer, **fields: Any) -> Asked:
    """A request of any kind that has something to lose."""
    kinds: list[dict[str, Any]] = [
        {},
        {},
        {"n": 2},
        {"n": 3, "stop": ["a", "e", "1"]},
        {"stop": ["a", "e", "0", "t"]},
        {"stop": ["ab", "z", " "], "includes_stop": True},
        {"stop_token_ids": [*range(40, 56)]},
    ]
    length = chance.choice([1, 2, 3, 4, 8, 9, 17])
    start = chance.choice([10, 10, 10, 60, chance.randint(1, 200)])  # so that some share a prefix
    prompt = [*range(start, start + length), chance.randint(1, VOCABULARY - 1)]
    drawn = {
        "prompt": prompt,
        "max_tokens": chance.choice([1, 2, 4, 6, 8, 12]),
        **chance.choice(kinds),
    }
    return Asked(**{**drawn, **fields}, tokenizer=tokenizer)
