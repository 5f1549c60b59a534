"""One client request while it runs: its choices' events, merged for one reader."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from cadenza.service.choice import Choice, TextOptions
from cadenza.service.engine_work import EngineWork
from cadenza.service.errors import DeadlineExceeded, GenerationFailed, RequestError
from cadenza.service.events import (
    Admitted,
    Event,
    FinishReason,
    Notice,
    Preempted,
    PromptScored,
)
from cadenza.service.queue import Places
from cadenza.service.request_timer import RequestTimer
from cadenza.service.tap import Tap
from cadenza.service.token_logprobs import PromptLogprobs
from cadenza.service.token_texts import TokenTexts
from cadenza.service.tokenizer import Tokenizer
from cadenza.service.turns import Turns
from cadenza.wire.messages import PromptScores, Submit

# gRPC sends a timeout rounded up by at most 1% of it, while its client goes by the true one and
# cancels. The constant is for the time that the request took to get here.
_EARLY_SHARE, _EARLY_S = 0.01, 0.01


class Generation:
    """A running request. Iterate once, by one reader; leave early only through `cancel`.

    Each item is everything that is new since the last one, never empty; a slow reader gets
    larger items, and nothing is lost. Iteration ends after every choice's `Finished`, or raises
    GenerationFailed or DeadlineExceeded after what came before the failure. As an async context
    manager it cancels on exit whatever has not ended. A reader that waits need not be woken for
    what its `tap` takes.

    It is open, and keeps a draining service waiting, until its reader has come to the end or has
    cancelled it; within its context, until the exit, which comes once the answer is delivered.
    """

    def __init__(
        self,
        *,
        id: str,
        model: str,
        prompt: Sequence[int],
        deadline_s: float | None,
        work: EngineWork,
        timer: RequestTimer,
        places: Places,
        queue_position: int,
        turns: Turns,
        on_closed: Callable[[Generation], None],
    ) -> None:
        """`Generator.submit` makes them.

        `deadline_s` is monotonic; from just before it on, a cancel is counted as its passing.
        `places` are left one by one as choices get their first seats, and all at the end;
        `queue_position` is how many of others were taken when the generation came.
        `turns` wake its reader.
        `on_closed` is called when the generation is open no more, perhaps several times.
        """
        self.id = id
        self.model = model
        self.created = int(time.time())
        self.prompt_tokens = len(prompt)
        self.queue_position = queue_position
        self.cached_tokens = 0  # of the prompt, known once the first choice is admitted
        self._prompt = prompt
        self._expected_end_s = _expected_end_s(deadline_s)
        self._work = work
        self._timer = timer
        self._places = places
        self._turns = turns
        self._on_closed = on_closed
        self._choices: list[Choice] = []
        self._unseated: set[Choice] = set()
        self._events: list[Event] = []
        self._prompt_logprobs: PromptLogprobs | None = None
        self._is_plain = False  # nothing comes before the output
        self._told_top: int | None = None  # of these, best tokens at each place, not yet told
        self._admitted = False
        self._failure: RequestError | None = None
        self._ended = False
        self._cancelled = False
        self._in_context = False
        self._waiter: asyncio.Future[None] | None = None
        self._reader_waits = False  # and has all that came before; perhaps it is being cancelled

    @property
    def call_id(self) -> str:
        """What all generations of one call have in common."""
        return self.id.partition("-")[0]

    @property
    def prompt(self) -> Sequence[int]:
        """The token ids of the prompt, which must not change."""
        return self._prompt

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    @property
    def is_over(self) -> bool:
        """Whether every choice has finished, or the whole failed or was cancelled."""
        return self._ended

    def launch(self, submits: Sequence[Submit], tokenizer: Tokenizer, options: TextOptions) -> None:
        """Send every choice to the engine, in order. Called once, by `Generator.submit`.

        Whatever it raises, no choice and no place in the queue is left behind.

        Raises:
            EngineUnavailable: the engine is dead.
        """
        told = None
        if (top := submits[0].sampling.prompt_logprobs) is not None:
            told = self._prompt_logprobs = PromptLogprobs(tokenizer, self._prompt, top)
        self._told_top = options.prompt_logprobs
        self._is_plain = options.echo is None and options.prompt_logprobs is None
        try:
            for index, number in enumerate(_numbers(submits)):
                times = self._timer.choice()
                choice = Choice(index, number, self, tokenizer, self._prompt, options, times, told)
                self._choices.append(choice)
                self._unseated.add(choice)
            for submit in submits:
                rows = self._choices[submit.choice : submit.choice + submit.n]
                self._work.submit(submit, rows)
        except BaseException:
            self._end("error")
            raise

    def refuse(self, error: RequestError) -> None:
        """End with `error`, as another takes the place. No choice may have had a seat yet."""
        if not self._ended:
            self._failure = error
            self._end("shed")

    def cancel(self) -> None:
        """Stop at once, and leave what was not read. Idempotent."""
        if not self._ended:
            self._cancelled = True
            self._end("deadline" if time.monotonic() >= self._expected_end_s else "abort")
        # They lead back here: without them nothing waits for the garbage collector
        self._choices, self._unseated = [], set()
        self._on_closed(self)

    def reprioritise(self, priority: int) -> None:
        """Give what has not ended another priority."""
        for choice in self._choices:
            self._work.reprioritise(choice.number, priority)

    def set_deadline(self, deadline_s: float | None) -> None:
        """Give what has not ended another deadline, on the monotonic clock; None: none."""
        self._expected_end_s = _expected_end_s(deadline_s)
        for choice in self._choices:
            self._work.set_deadline(choice.number, deadline_s)

    def stall(self, *, is_stalled: bool) -> None:
        """The reader takes nothing for now, or does again; meanwhile seats are others'.

        A request with credit has no need of it.
        """
        if not self._ended:
            for choice in self._choices:
                self._work.stall(choice.number, is_stalled=is_stalled)

    def grant(self, tokens: int) -> None:
        """The reader takes `tokens` more, of all choices together."""
        if not self._ended:
            running = next(choice for choice in self._choices if not choice.is_over)
            self._work.grant(running.number, tokens)

    async def __aenter__(self) -> Generation:
        self._in_context = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> list[Event]:
        while not self._cancelled:
            if batch := self.take():
                return batch
            if self._failure is not None or self._ended:
                break
            await self._wait()
        if not self._in_context:
            self._on_closed(self)
        if self._failure is not None and not self._cancelled:
            raise self._failure
        raise StopAsyncIteration

    def tap(self, of_choice: Callable[[int, TokenTexts], Tap]) -> None:
        """Let a tap of each choice have its tokens that come while the reader waits.

        `of_choice` makes it for a number, and for the texts that tokens have.

        It is called on the loop, and either takes the token or leaves it, and all that come before
        the reader waits again, to the reader. What it raises is raised to the reader. The end,
        log-probabilities and notices are the reader's in any case, and so are all tokens after an
        echo or a prompt's log-probabilities. Waking the reader's task for every token, and the
        coroutines that it awaits through, costs more than all that is done with the token.
        """
        if self._is_plain:
            for choice in self._choices:
                choice.tap(of_choice)

    def take(self) -> list[Event]:
        """Everything that is new since the last item, perhaps nothing.

        For whoever is about to cancel it, and else only for its own reader.
        """
        batch, self._events = self._events, []
        for choice in self._choices:
            choice.drain(batch)
        return batch

    async def _wait(self) -> None:
        assert self._waiter is None, "a generation has one reader"
        self._waiter = asyncio.get_running_loop().create_future()
        self._let_reader_wait(waits=True)
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._let_reader_wait(waits=False)

    def _let_reader_wait(self, *, waits: bool) -> None:
        if waits != self._reader_waits:
            self._reader_waits = waits
            for choice in self._choices:
                choice.let_reader_wait(waits=waits)

    def _wake(self) -> None:
        self._let_reader_wait(waits=False)
        if self._waiter is not None and not self._waiter.done():
            self._turns.wake(self._waiter)

    def _end(self, reason: str) -> None:
        if self._ended:
            return
        self._ended = True
        self._places.leave_all()
        for choice in self._choices:
            if not choice.is_over:
                self._work.cancel(choice.number)
        self._timer.ended(reason)
        self._wake()

    def _seat(self, choice: Choice) -> None:
        if choice in self._unseated:
            self._unseated.remove(choice)
            self._places.seat()

    # choice.Owner

    def tap_failed(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def choice_changed(self, choice: Choice, *, sampled: bool) -> None:
        if self._unseated:
            self._seat(choice)
        if sampled and self._told_top is not None and self._prompt_logprobs is not None:
            logprobs = self._prompt_logprobs.positions(self._told_top)
            self._events.append(PromptScored(logprobs=logprobs))
            self._told_top = None
        if choice.is_over and all(c.is_over for c in self._choices):
            self._conclude()
        self._wake()

    def choice_admitted(self, choice: Choice, cached_tokens: int) -> None:
        self._seat(choice)
        if not self._admitted:
            self._admitted = True
            self.cached_tokens = cached_tokens
            self._timer.seated(cached_tokens)
            self._events.append(Admitted(cached_tokens=cached_tokens))
            self._wake()

    def choice_noticed(self, choice: Choice, notice: Notice) -> None:
        if isinstance(notice, Preempted):
            self._timer.preempted()
        # What its reader has not taken came before
        choice.drain(self._events)
        self._events.append(notice)
        self._wake()

    def choice_scored(self, scores: PromptScores) -> None:
        if self._prompt_logprobs is not None:
            self._prompt_logprobs.add(scores)

    def choice_failed(self, message: str, *, retryable: bool) -> None:
        if not self._ended:
            self._failure = GenerationFailed(message, retryable=retryable)
        self._end("error")

    def choice_stopped(self, choice: Choice) -> None:
        self._work.finish(choice.number, choice.num_tokens)

    def _conclude(self) -> None:
        """Every choice is over. One that expired makes the whole a failure, its text told first."""
        if any(choice.expired for choice in self._choices):
            self._failure = DeadlineExceeded()
            self._end("deadline")
        else:
            self._end(self._reason())

    def _reason(self) -> str:
        finished = [choice.finished for choice in self._choices if choice.finished]
        cut = any(end.reason is FinishReason.LENGTH for end in finished)
        return "length" if cut else "stop"


def _expected_end_s(deadline_s: float | None) -> float:
    """When a client may notice that its deadline has passed."""
    if deadline_s is None:
        return math.inf
    left_s = max(deadline_s - time.monotonic(), 0)
    return deadline_s - _EARLY_SHARE * left_s - _EARLY_S


def _numbers(submits: Sequence[Submit]) -> Iterator[int]:
    """The engine's names for the rows, choice after choice."""
    for submit in submits:
        yield from range(submit.request, submit.request + submit.n)
