"""What a step of the engine brought, taken apart for those who wait for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cadenza.wire import arrays
from cadenza.wire.codec import FrameError
from cadenza.wire.messages import RowLogprobs, Step


class News(NamedTuple):
    """A step's arrays, taken apart."""

    preempted: Sequence[int]
    admitted: Sequence[tuple[int, int]]  # request, cached tokens
    # Columns of one length
    requests: Sequence[int]
    tokens: Sequence[int]
    finished: Sequence[int]  # `wire.messages.Finished`
    logprobs: Mapping[int, RowLogprobs]  # by request


def read_news(step: Step) -> News:
    """All of a step, before any of it is handed out.

    Raises:
        FrameError: arrays that are none, or of unequal lengths.
    """
    try:
        requests = arrays.read_requests(step.requests)
        tokens = arrays.read_ids(step.tokens)
        if not len(requests) == len(tokens) == len(step.finished):
            raise ValueError("columns are not of one length")
        return News(
            arrays.read_requests(step.preempted) if step.preempted else (),
            _admitted(step) if step.admitted or step.admitted_cached else (),
            requests,
            tokens,
            step.finished,
            _logprobs(step, requests) if step.logprobs else {},
        )
    except (ValueError, IndexError) as error:
        raise FrameError(f"a step does not fit together: {error}") from error


def _admitted(step: Step) -> list[tuple[int, int]]:
    requests = arrays.read_requests(step.admitted)
    return list(zip(requests, arrays.read_ids(step.admitted_cached), strict=True))


def _logprobs(step: Step, requests: Sequence[int]) -> dict[int, RowLogprobs]:
    for entry in step.logprobs:
        if arrays.view_ids(entry.top_ids).size != arrays.view_floats(entry.top_logprobs).size:
            raise ValueError("log-probabilities without their tokens")
    return {requests[entry.row]: entry for entry in step.logprobs}
