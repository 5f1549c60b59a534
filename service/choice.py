"""One choice of a generation: from the engine's tokens to text, up to its one end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cadenza.service.events import (
    Delta,
    Echo,
    Event,
    Finished,
    FinishReason,
    Notice,
    Parked,
    PositionLogprobs,
    Preempted,
    Resumed,
    Unparked,
)
from cadenza.service.request_timer import TokenTimes
from cadenza.service.stop_strings import StopStrings
from cadenza.service.tap import Tap
from cadenza.service.token_logprobs import PromptLogprobs, sampled_position
from cadenza.service.token_texts import TokenTexts
from cadenza.service.tokenizer import Tokenizer
from cadenza.wire.messages import Finished as RowEnd
from cadenza.wire.messages import PromptScores, RowLogprobs

# Plain numbers, as a frame has them: comparing with the enum would take longer
_FAILED = int(RowEnd.FAILED)
_UNTOLD = frozenset(map(int, (RowEnd.EOS, RowEnd.STOP_TOKEN)))  # ends whose token is no text


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """What of a choice's tokens its reader gets to see as text."""

    stops: Sequence[str] = ()  # end the text
    min_tokens: int = 0  # whose text no stop string is looked for in
    include_stop: bool = False  # what ends the text is part of it
    skip_special_tokens: bool = True  # control tokens have no text
    echo: str | None = None  # what the text begins with
    echoed_logprobs: int | None = None  # best tokens beside each of the prompt's; None: neither
    prompt_logprobs: int | None = None  # the same, told once for all choices
    generates: bool = True  # else the token that the engine cannot but draw is not told


class Owner(Protocol):
    """The generation that a choice belongs to."""

    def tap_failed(self, error: Exception) -> None:
        """What a tap raised."""

    def choice_changed(self, choice: Choice, *, sampled: bool) -> None:
        """There may be something to `drain`, after a token or without one; it may be over."""

    def choice_admitted(self, choice: Choice, cached_tokens: int) -> None:
        """The choice got its first seat."""

    def choice_noticed(self, choice: Choice, notice: Notice) -> None:
        """The scheduler did something else with the choice, of which its reader may learn."""

    def choice_scored(self, scores: PromptScores) -> None:
        """The engine tells of some tokens of the prompt."""

    def choice_failed(self, message: str, *, retryable: bool) -> None:
        """The choice ended without a result."""

    def choice_stopped(self, choice: Choice) -> None:
        """A stop string ended the choice, which the engine does not know yet."""


class Choice:
    """Receives one row's tokens (`engine_rows.Row`) and keeps what its reader has not taken.

    Text is decoded on arrival, so that a stop string ends the row even if nobody is reading. What
    is kept is at most max_tokens of output, merged into one Delta whenever the reader comes.
    """

    # Slots, as a token finds most of what it needs outside the processor's caches
    __slots__ = (
        "_detokenizer",
        "_echoed",
        "_end_taken",
        "_generates",
        "_logprobs",
        "_may_stop",
        "_options",
        "_owner",
        "_prompt_logprobs",
        "_reader_waits",
        "_stops",
        "_tap",
        "_texts",
        "_token_ids",
        "_tokenizer",
        "_was_admitted",
        "expired",
        "finished",
        "index",
        "number",
        "plain_tap",
        "times",
    )

    def __init__(
        self,
        index: int,
        number: int,
        owner: Owner,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        options: TextOptions,
        times: TokenTimes,
        prompt_logprobs: PromptLogprobs | None = None,
    ) -> None:
        self.index = index
        self.number = number  # the engine's name for it
        self.finished: Finished | None = None
        self.expired = False  # ended by its deadline: nothing follows, not even `finished`
        self._owner = owner
        self.times = times
        self._tap: Tap | None = None
        self.plain_tap: Tap | None = None  # the same, while it may have plain tokens
        self._reader_waits = False
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer(
            prompt, skip_special_tokens=options.skip_special_tokens
        )
        self._stops = StopStrings(options.stops, include=options.include_stop)
        self._may_stop = bool(options.stops)
        self._generates = options.generates
        self._options = options
        self._prompt_logprobs = prompt_logprobs
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[PositionLogprobs] = []
        self._echoed = options.echo is None
        self._was_admitted = False
        self._end_taken = False

    @property
    def num_tokens(self) -> int:
        """Generated so far, the ending token included."""
        return self.times.count

    @property
    def is_over(self) -> bool:
        return self.finished is not None or self.expired

    def tap(self, of_choice: Callable[[int, TokenTexts], Tap]) -> None:
        """Let a tap have tokens while the owner's reader waits, for there is nothing but tokens."""
        self._tap = of_choice(self.index, self._detokenizer.texts)
        self._choose_tap()

    def let_reader_wait(self, *, waits: bool) -> None:
        """The owner's reader waits for more from now on, and has all that came before; or not."""
        self._reader_waits = waits
        self._choose_tap()

    def _choose_tap(self) -> None:
        passes = self._reader_waits and not self._may_stop and self._detokenizer.is_whole
        self.plain_tap = self._tap if passes else None

    def drain(self, events: list[Event]) -> None:
        """Append everything new since the last call: an echo, at most one Delta, then the end."""
        if not self._echoed and (self._token_ids or self.finished is not None):
            self._echoed = True
            events.append(self._echo())
        if self._token_ids or self._texts:
            events.append(
                Delta(
                    choice=self.index,
                    text="".join(self._texts),
                    token_ids=self._token_ids,
                    logprobs=self._logprobs,
                )
            )
            self._texts, self._token_ids = [], []
            if self._logprobs:
                self._logprobs = []
        if self.finished is not None and not self._end_taken:
            self._end_taken = True
            events.append(self.finished)

    def _echo(self) -> Echo:
        options = self._options
        logprobs: Sequence[PositionLogprobs] = ()
        if options.echoed_logprobs is not None and self._prompt_logprobs is not None:
            logprobs = self._prompt_logprobs.positions(options.echoed_logprobs)
        return Echo(choice=self.index, text=options.echo or "", logprobs=logprobs)

    # engine_rows.Row

    def on_prompt_scores(self, scores: PromptScores) -> None:
        self._owner.choice_scored(scores)

    def on_admitted(self, cached_tokens: int) -> None:
        if self._was_admitted:
            self._owner.choice_noticed(self, Resumed(choice=self.index))
        else:
            self._was_admitted = True
            self._owner.choice_admitted(self, cached_tokens)

    def on_preempted(self) -> None:
        self._owner.choice_noticed(self, Preempted(choice=self.index))

    def on_parked(self) -> None:
        self._owner.choice_noticed(self, Parked(choice=self.index))

    def on_unparked(self) -> None:
        self._owner.choice_noticed(self, Unparked(choice=self.index))

    def on_failed(self, message: str, *, retryable: bool) -> None:
        self._owner.choice_failed(message, retryable=retryable)

    def tap_failed(self, error: Exception) -> None:
        self._owner.tap_failed(error)

    def on_token(
        self, token: int, finished: int, logprobs: RowLogprobs | None, now_s: float
    ) -> None:
        if finished == _FAILED:
            message = "The model could not go on with this request."
            self._owner.choice_failed(message, retryable=False)
            return
        if token >= 0:
            if not self._generates:
                self._finish(FinishReason.LENGTH, None)
                self._owner.choice_changed(self, sampled=True)
                return
            self.times.token(now_s)
            text = ""
            if finished not in _UNTOLD or self._options.include_stop:
                text = self._detokenizer.push(token)
                if self._may_stop:
                    text = self._shown(text)
            if self._tap is not None and self._reader_waits:
                self._choose_tap()
                is_bare = not finished and logprobs is None and self.finished is None
                if is_bare and self._is_taken(self._tap, token, text):
                    return
            self._keep(token, text, logprobs)
        if finished and self.finished is None:
            self._end(finished, token)
        elif self.finished is not None and not finished:
            self._owner.choice_stopped(self)
        self._owner.choice_changed(self, sampled=token >= 0)

    def _is_taken(self, tap: Tap, token: int, text: str) -> bool:
        try:
            return tap.take(token, text)
        except Exception as error:
            self._owner.tap_failed(error)
            return False

    def _keep(self, token: int, text: str, logprobs: RowLogprobs | None) -> None:
        self._token_ids.append(token)
        self._say(text)
        if logprobs is not None:
            self._logprobs.append(sampled_position(self._tokenizer, token, logprobs))

    def _say(self, text: str) -> None:
        if text:
            self._texts.append(text)

    def _shown(self, text: str) -> str:
        """What of new text may be shown, as no stop string may begin in it; one may end it."""
        if not text or self.num_tokens <= self._options.min_tokens:
            return text
        shown, stop = self._stops.push(text)
        if stop is not None:
            self._finish(FinishReason.STOP, stop)
        return shown

    def _end(self, finished: int, token: int) -> None:
        """The engine ended the row: what is held comes out, and may still hold a stop string."""
        text = self._detokenizer.flush()
        self._say(self._shown(text) if self._may_stop else text)
        if self.finished is not None:
            return
        self._say(self._stops.flush())
        if finished == RowEnd.DEADLINE:
            self.expired = True
        elif finished == RowEnd.LENGTH:
            self._finish(FinishReason.LENGTH, None)
        else:
            self._finish(FinishReason.STOP, token if finished == RowEnd.STOP_TOKEN else None)

    def _finish(self, reason: FinishReason, stop_reason: str | int | None) -> None:
        self.finished = Finished(
            choice=self.index,
            reason=reason,
            stop_reason=stop_reason,
            completion_tokens=self.num_tokens,
        )
