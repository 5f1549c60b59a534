"""The queue has an end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cadenza.policies.arrivals import ArrivalColumns, Refusal, ServiceView
from cadenza.policies.markers import hookimpl


class QueueLimit:
    """Refuse whoever would make the prompts that wait longer than `max_tokens` together.

        refused if  queued tokens > 0  and  queued tokens + prompt tokens > max_tokens

    vLLM's `max_num_queued_tokens`, to be set to the wait that is bearable times the prompt tokens
    computed a second. With an empty queue the longest prompt enters, or it never would. How many
    choices may wait, `--max-num-queued-reqs`, the service itself sees to: that is all that limits
    the queue unless `max_tokens` is given. It loses where most of a prompt is found in the prefix
    cache, as the whole of it counts, and knows nothing of the outputs that seats are held for.
    """

    name = "queue-limit"

    @dataclass(frozen=True)
    class Options:
        """`max_tokens`: of the prompts of requests without a first seat; None: no limit."""

        max_tokens: int | None = None

        def __post_init__(self) -> None:
            if self.max_tokens is not None and self.max_tokens < 1:
                raise ValueError("max_tokens must be at least 1")

    def __init__(self, options: Options | None = None) -> None:
        self._max_tokens = (options or self.Options()).max_tokens

    @hookimpl
    def gate_arrivals(
        self, arrivals: ArrivalColumns, service: ServiceView
    ) -> Sequence[Refusal | None] | None:
        if self._max_tokens is None or not service.queued_tokens:
            return None
        if service.queued_tokens + int(arrivals.prompt_tokens.sum()) <= self._max_tokens:
            return None
        reason = f"The queue is full ({service.queued_tokens} prompt tokens wait). Try again later."
        return [Refusal(reason=reason, limit="service")] * len(arrivals)
