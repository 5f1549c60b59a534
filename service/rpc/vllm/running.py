"""The requests that run, by the names that their clients gave them, so that they can be aborted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager

from cadenza.service.errors import DeadlineExceeded
from cadenza.service.events import Event
from cadenza.service.generation import Generation


class Run:
    """One request between its arrival and its end."""

    def __init__(self) -> None:
        self.is_aborted = False
        self.unread: list[Event] = []  # what its reader had not taken when it was aborted
        self._entering: asyncio.Timeout | None = None
        self._generation: Generation | None = None

    async def launch(
        self, submitting: Awaitable[Generation], deadline_s: float | None
    ) -> Generation | None:
        """What is submitted; None: it was aborted before, and nothing is left of it.

        Raises:
            DeadlineExceeded: `deadline_s`, on the monotonic clock, has passed before.
        """
        left_s = None if deadline_s is None else deadline_s - time.monotonic()
        try:
            async with asyncio.timeout(left_s) as self._entering:
                self._generation = await submitting
        except TimeoutError:
            if self.is_aborted:
                return None
            raise DeadlineExceeded from None
        finally:
            self._entering = None
        if self.is_aborted:  # as it was launched
            self._generation.cancel()
        return self._generation

    def abort(self) -> None:
        """End it, unless it has ended: its generation's reader comes to the end."""
        generation = self._generation
        if self.is_aborted or (generation is not None and generation.is_over):
            return
        self.is_aborted = True
        if generation is not None:
            self.unread = generation.take()
            generation.cancel()
        elif self._entering is not None:
            self._entering.reschedule(asyncio.get_running_loop().time())


class Running:
    """Runs by name. Several may have one name, as in vLLM, and are aborted together."""

    def __init__(self) -> None:
        self._runs: dict[str, set[Run]] = {}

    @contextmanager
    def entered(self, name: str) -> Iterator[Run]:
        """A run that is found under `name` until the exit; one without a name is never found."""
        run = Run()
        if not name:
            yield run
            return
        self._runs.setdefault(name, set()).add(run)
        try:
            yield run
        finally:
            runs = self._runs[name]
            runs.discard(run)
            if not runs:
                del self._runs[name]

    def abort(self, names: Iterable[str]) -> None:
        """Abort all that have one of the names; nobody may have one, as it has ended already."""
        for name in set(names):
            for run in self._runs.get(name, ()):
                run.abort()
