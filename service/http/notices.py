"""What the scheduler did with a request, for streams whose client asks to be told.

The words are those of gRPC's `Notice` and `Accepted`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

from cadenza.service.events import Admitted, Notice, Parked, Preempted, Resumed, Unparked

EVENT = "cadenza.notice"
KINDS = ("queued", "admitted", "preempted", "resumed", "parked", "unparked")


def queued(prompt: int, queue_position: int) -> dict[str, Any]:
    """A prompt of the call is valid and waits behind so many choices of others."""
    return {"notice": "queued", "prompt": prompt, "queue_position": queue_position}


def noticed(prompt: int, notice: Notice, index_of: Callable[[int], int]) -> dict[str, Any]:
    """A notice of a prompt's generation; `index_of` gives a choice's number in the answer."""
    match notice:
        case Admitted():
            return {"notice": "admitted", "prompt": prompt, "cached_tokens": notice.cached_tokens}
        case Preempted():
            return {"notice": "preempted", "choice": index_of(notice.choice)}
        case Resumed():
            return {"notice": "resumed", "choice": index_of(notice.choice)}
        case Parked():
            return {"notice": "parked", "choice": index_of(notice.choice)}
        case Unparked():
            return {"notice": "unparked", "choice": index_of(notice.choice)}
    assert_never(notice)
