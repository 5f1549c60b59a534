"""The requests that run, by the names that their clients gave them, so that they can be aborted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from cadenza.service.generation import Generation


class Run:
    """One request between its arrival and its end."""

    def __init__(self) -> None:
        self.is_aborted = False
        self._generation: Generation | None = None

    def launched(self, generation: Generation) -> None:
        """The engine has it, and is told at once if it was aborted before."""
        self._generation = generation
        if self.is_aborted:
            generation.cancel()

    def abort(self) -> None:
        """End it: its generation's reader comes to the end."""
        self.is_aborted = True
        if self._generation is not None:
            self._generation.cancel()


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
        for name in names:
            for run in self._runs.get(name, ()):
                run.abort()

    def __len__(self) -> int:
        """How many names there are."""
        return len(self._runs)
