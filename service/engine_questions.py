"""Who waits for the engine: for the answer to a question, or until it has handled what was sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import TypeAlias, TypeVar

from cadenza.service.errors import EngineUnavailable
from cadenza.wire.messages import PoliciesAnswer, PoliciesState

T = TypeVar("T")
Answer: TypeAlias = PoliciesAnswer | PoliciesState

ANSWER_LIMIT_S = 10.0  # for a question; an engine that serves answers between two steps


class Questions:
    """What was asked and has no answer yet. All of it fails with the engine."""

    def __init__(self) -> None:
        self._asked: dict[int, asyncio.Future[Answer]] = {}  # by number
        self._sent: deque[tuple[int, asyncio.Future[None]]] = deque()  # by messages handled

    @property
    def num_open(self) -> int:
        """Questions, and waits for messages to be handled, that the engine has not ended."""
        return len(self._asked) + len(self._sent)

    def ask(self, number: int) -> asyncio.Future[Answer]:
        """The answer to the question of this number; `forget` it in any case."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        return answer

    def forget(self, number: int) -> None:
        """Nobody waits for the answer any more."""
        del self._asked[number]

    def answer(self, answer: Answer) -> None:
        """The engine has answered; an answer that comes too late is nobody's."""
        question = self._asked.get(answer.number)
        if question is not None and not question.done():
            question.set_result(answer)

    def handled(self, sent: int) -> asyncio.Future[None]:
        """Ends once the engine has handled so many messages."""
        handled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sent.append((sent, handled))
        return handled

    def has_handled(self, received: int) -> None:
        """The engine has handled so many messages."""
        while self._sent and self._sent[0][0] <= received:
            _, handled = self._sent.popleft()
            if not handled.done():
                handled.set_result(None)

    def fail(self, reason: str) -> None:
        """The engine is dead."""
        waiting: list[asyncio.Future[Answer] | asyncio.Future[None]]
        waiting = [*self._asked.values(), *(handled for _, handled in self._sent)]
        self._sent.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(EngineUnavailable(reason))
                future.exception()  # seen: nobody need be waiting


async def in_time(answer: Awaitable[T], limit_s: float | None = ANSWER_LIMIT_S) -> T:
    """What the engine answers; an answer that comes later is nobody's. None: without limit.

    Raises:
        EngineUnavailable: it does not answer in time; and whatever `answer` raises.
    """
    try:
        async with asyncio.timeout(limit_s):
            return await answer
    except TimeoutError as error:
        message = f"The engine has not answered within {limit_s:g} s; try again later."
        raise EngineUnavailable(message) from error
