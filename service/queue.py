"""Calls whose choices have had no seat yet, and how many of those there may be.

The bound is the service's own: whatever policies answer, no more choices wait.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cadenza.policies.arrivals import Arrival
from cadenza.policies.tenants import NO_TENANT, Tenants
from cadenza.policies.views import IntArray
from cadenza.service.errors import Overloaded, RequestError
from cadenza.service.queue_pace import QueuePace
from cadenza.service.validation import CheckedRequest

if TYPE_CHECKING:
    from cadenza.service.generation import Generation


class Queue:
    """Choices without a first seat, as places of which there are `size`."""

    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self.size = size
        self.pace = QueuePace(clock)
        self.num_taken = 0
        self.num_tokens = 0  # of the prompts of requests none of whose choices had a seat
        self.tenants = Tenants()
        self._by_tenant = [0]  # choices, by a tenant's number
        self._waiting: dict[Entry, None] = {}  # none of whose choices had a seat, by arrival

    @property
    def waiting(self) -> Sequence[Entry]:
        """Calls that can be refused yet, in order of arrival."""
        return tuple(self._waiting)

    def hold(self) -> Places:
        """A place for a call that cannot be checked before the engine serves.

        Raises:
            Overloaded: there is none.
        """
        if self.num_taken >= self.size:
            raise self.overloaded()
        return Places(self, 1)

    def enter(self, entry: Entry) -> None:
        """Take places for all choices of a call at once; the queue lets go of its tenants.

        Raises:
            Overloaded: there are not as many.
        """
        if self.num_taken + entry.num_choices > self.size:
            raise self.overloaded()
        known = zip(entry.requests, entry.tenants, entry.prompt_tokens, strict=True)
        entry.places = [
            Places(self, request.num_choices, tenant, prompt_tokens, entry)
            for request, tenant, prompt_tokens in known
        ]
        self._waiting[entry] = None

    def overloaded(self) -> Overloaded:
        """What a client is told for whom there is no room."""
        message = f"The queue is full ({self.num_taken} choices wait). Try again later."
        return Overloaded(message)

    def queued_by(self, tenant: int) -> int:
        """Choices of a tenant that wait."""
        return self._by_tenant[tenant] if tenant < len(self._by_tenant) else 0

    def queued_by_each(self, tenants: IntArray) -> IntArray:
        """The same for several."""
        self._grow(int(tenants.max(initial=0)))
        return np.array(self._by_tenant)[tenants]

    def count(self, places: int, tenant: int) -> None:
        """So many places more are taken, or less."""
        self.pace.advance(somebody_waited=self.num_taken > 0)
        self.num_taken += places
        if tenant >= len(self._by_tenant):
            self._grow(tenant)
        self._by_tenant[tenant] += places

    def _grow(self, tenant: int) -> None:
        self._by_tenant += [0] * (tenant + 1 - len(self._by_tenant))

    def forget(self, entry: Entry) -> None:
        """The call cannot be refused any more: it has a seat, or is over."""
        self._waiting.pop(entry, None)
        entry.generations = ()


class Places:
    """One request's places. Each is given back once, however often its holder leaves."""

    __slots__ = ("_entry", "_num_held", "_prompt_tokens", "_queue", "_tenant")

    def __init__(
        self,
        queue: Queue,
        count: int,
        tenant: int = NO_TENANT,
        prompt_tokens: int = 0,
        entry: Entry | None = None,
    ) -> None:
        """`Queue` makes them. `entry` is the call that they are part of."""
        self._prompt_tokens = prompt_tokens
        self._queue = queue
        self._tenant = tenant
        self._entry = entry
        self._num_held = count
        queue.count(count, tenant)
        queue.num_tokens += prompt_tokens

    @property
    def num_held(self) -> int:
        """Places that are not given back."""
        return self._num_held

    def learn(self, prompt_tokens: int) -> None:
        """What was an estimate is known."""
        if self._entry is not None:
            self._queue.num_tokens += prompt_tokens - self._prompt_tokens
            self._prompt_tokens = prompt_tokens

    def change(self, name: str, value: Any) -> None:
        """Another value for a field of the request, as long as whoever sheds may look at it."""
        if self._entry is not None:
            self._entry.change(self, name, value)

    def leave(self, count: int = 1) -> None:
        """Give back up to `count` places."""
        count = min(count, self._num_held)
        if not count:
            return
        self._num_held -= count
        self._queue.count(-count, self._tenant)
        if self._entry is not None:
            self._queue.forget(self._entry)
            self._entry = None
            self._queue.num_tokens -= self._prompt_tokens
        if not self._num_held:
            self._queue.tenants.leave(self._tenant)

    def leave_all(self) -> None:
        """Give back what is still held. Idempotent."""
        self.leave(self._num_held)

    def seat(self) -> None:
        """Give one back, as a choice has its first seat."""
        self.leave()
        self._queue.pace.seated()


class Entry:
    """A call of one client: requests that enter together, and are refused together."""

    __slots__ = (
        "_packed",
        "_preparing",
        "arrived_s",
        "generations",
        "num_choices",
        "places",
        "prompt_tokens",
        "refusal",
        "requests",
        "tenants",
    )

    def __init__(
        self,
        requests: Sequence[CheckedRequest],
        prompt_tokens: list[int],
        tenants: Sequence[int],
        arrived_s: float,
    ) -> None:
        """`prompt_tokens`, as far as known, and the numbers of `tenants` are by request."""
        self.requests = requests
        self.prompt_tokens = prompt_tokens
        self.tenants = tenants
        self.arrived_s = arrived_s
        self.num_choices = sum([request.num_choices for request in requests])
        self.places: Sequence[Places] = ()  # by request, once it has entered
        self.generations: Sequence[Generation] = ()  # from their launch to the first seat
        self.refusal: RequestError | None = None
        self._packed: bytes | None = None
        self._preparing: asyncio.Task[Any] | None = None  # for as long as it waits for prompts

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Let a refusal end what the current task waits for in this block, and be raised by it.

        So nothing is encoded, and nobody waits, for a call that is over.
        """
        task = asyncio.current_task()
        assert task is not None
        num_cancels = task.cancelling()
        self._preparing = task
        try:
            yield
        except asyncio.CancelledError:
            if self.refusal is None or task.uncancel() > num_cancels:
                raise  # somebody else wants the task to end
            raise self.refusal from None
        finally:
            self._preparing = None

    def arrivals(self, queue: Queue, max_model_len: int) -> list[Arrival]:
        """Each request as one element of `ArrivalColumns`."""
        return [
            Arrival(
                arrival_s=self.arrived_s,
                choices=request.num_choices,
                prompt_tokens=prompt_tokens,
                max_tokens=request.max_tokens or max(max_model_len - prompt_tokens, 1),
                priority=request.priority,
                tenant=tenant,
                tenant_queued=queue.queued_by(tenant),
                deadline_s=_or_never(request.deadline_s),
                ttft_target_s=_or_never(request.ttft_target_s),
                tpot_target_s=_or_never(request.tpot_target_s),
            )
            for request, prompt_tokens, tenant in zip(
                self.requests, self.prompt_tokens, self.tenants, strict=True
            )
        ]

    def packed(self, queue: Queue, max_model_len: int) -> bytes:
        """All of it as one element, whose `tenant_queued` is of some time ago."""
        if self._packed is None:
            first = self.arrivals(queue, max_model_len)[0]
            whole = first._replace(choices=self.num_choices, prompt_tokens=sum(self.prompt_tokens))
            self._packed = whole.packed()
        return self._packed

    def change(self, places: Places, name: str, value: Any) -> None:
        """Another value for a field of the request that holds these places."""
        index, requests = self.places.index(places), [*self.requests]
        requests[index] = replace(requests[index], **{name: value})
        self.requests, self._packed = requests, None

    def learn(self, index: int, prompt_tokens: int) -> None:
        """The prompt of a request is encoded; before, its length was an estimate."""
        self.places[index].learn(prompt_tokens)
        self.prompt_tokens[index] = prompt_tokens
        self._packed = None

    def refuse(self, error: RequestError) -> None:
        """Make room for another: whoever waits for the call's answer gets `error`, and at once."""
        self.refusal = error
        if self._preparing is not None:
            self._preparing.cancel()
        for generation in self.generations:
            generation.refuse(error)
        self.leave()

    def leave(self) -> None:
        """Give back all places. Idempotent."""
        for places in self.places:
            places.leave_all()


def _or_never(time_s: float | None) -> float:
    return math.inf if time_s is None else time_s
