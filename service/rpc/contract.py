"""What the gRPC side needs of the rest of the front process, and no more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol, Self

from cadenza.service.events import Event
from cadenza.service.request import GenerationRequest


class Generation(Protocol):
    """**Protocol:** one accepted request. Leaving its context cancels what is unfinished."""

    @property
    def id(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def num_choices(self) -> int: ...

    def __aiter__(self) -> AsyncIterator[list[Event]]:
        """Batches of events, until every choice is finished. Raises `GenerationFailed`."""
        ...

    def cancel(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> object: ...


class Generator(Protocol):
    """**Protocol:** turns requests into generations."""

    async def submit(self, request: GenerationRequest, /) -> Generation:
        """Validate, tokenise and queue. Raises a `RequestError` that may be shown to the client."""
        ...
