"""What a client wants otherwise of its request after it was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cadenza.service.queue import Places

if TYPE_CHECKING:
    from cadenza.service.generation import Generation


class Control:
    """Another priority or deadline, or more credit, for one request at any time of its life.

    Until the request is checked the last word is kept; then the request is changed where it waits
    for a seat; and once the engine has it the engine is told, too.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, Any] = {}  # fields of the request, before it is checked
        self._granted = 0  # before the engine has it
        self._places: Places | None = None
        self._generation: Generation | None = None

    @property
    def num_rows(self) -> int:
        """How many messages a change takes: one for each choice, once the engine has them."""
        return 0 if self._generation is None else self._generation.num_choices

    def reprioritise(self, priority: int) -> None:
        """Another priority, in a request's range."""
        self._change("priority", priority)
        if self._generation is not None:
            self._generation.reprioritise(priority)

    def set_deadline(self, deadline_s: float | None) -> None:
        """Another deadline, on the monotonic clock; None: none."""
        self._change("deadline_s", deadline_s)
        if self._generation is not None:
            self._generation.set_deadline(deadline_s)

    def grant(self, tokens: int) -> None:
        """The client takes `tokens` more, of all choices together."""
        if self._generation is None:
            self._granted += tokens
        else:
            self._generation.grant(tokens)

    def entered(self, places: Places) -> None:
        """The request is checked, and waits in these places."""
        self._places = places
        for name, value in self._wanted.items():
            places.change(name, value)

    def launched(self, generation: Generation) -> None:
        """The engine has the request, as it was changed by then."""
        self._generation = generation
        if self._granted:
            generation.grant(self._granted)

    def _change(self, name: str, value: Any) -> None:
        if self._places is None:
            self._wanted[name] = value
        else:
            self._places.change(name, value)
