"""What the hooks of the front process see and answer: calls that arrive or wait, and a refusal.

Read-only like `policies.views`, and not to be kept either.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cadenza.policies.views import Columns, FloatArray, IntArray


class Arrival(NamedTuple):
    """One element of `ArrivalColumns`, whose columns say what the fields mean."""

    arrival_s: float
    choices: int
    prompt_tokens: int
    max_tokens: int
    priority: int
    tenant: int
    tenant_queued: int
    deadline_s: float
    ttft_target_s: float
    tpot_target_s: float

    def packed(self) -> bytes:
        """The fields as `table_of` takes them."""
        return _PACKED.pack(*self)


_KINDS = ["d" if name.endswith("_s") else "q" for name in Arrival._fields]
_PACKED = struct.Struct("=" + "".join(_KINDS))
_RECORD = np.dtype(list(zip(Arrival._fields, _KINDS, strict=True)))


def table_of(arrivals: Iterable[bytes]) -> npt.NDArray[Any]:
    """Packed arrivals as one array with fields, which can be written to."""
    return np.frombuffer(bytearray(b"".join(arrivals)), _RECORD)


class ArrivalColumns(Columns):
    """Requests that arrive, or that wait for a first seat: one element each in every column."""

    __slots__ = ()

    def __init__(self, table: npt.NDArray[Any]) -> None:
        """`table_of` makes the table, which the view keeps and does not change."""
        super().__init__({name: table[name] for name in Arrival._fields}, np.arange(len(table)))

    @property
    def arrival_s(self) -> FloatArray:
        """Time of arrival, on the clock of `ServiceView.now_s`."""
        return self._gather("arrival_s")

    @property
    def choices(self) -> IntArray:
        """Outputs wanted; each takes a place in the queue, and may have `max_tokens`."""
        return self._gather("choices")

    @property
    def prompt_tokens(self) -> IntArray:
        """Length of the prompt, as far as known.

        Exact where the client sent token ids, or once the prompt is encoded; before that estimated
        from its characters, by what prompts had of late.
        """
        return self._gather("prompt_tokens")

    @property
    def max_tokens(self) -> IntArray:
        """Output tokens of a choice at most: what the client said, or what the context leaves."""
        return self._gather("max_tokens")

    @property
    def priority(self) -> IntArray:
        """What the client asked for; a lower number is earlier."""
        return self._gather("priority")

    @property
    def tenant(self) -> IntArray:
        """Whom the request counts for: a small number a tenant; 0: nobody in particular.

        A tenant keeps its number while a request of it waits here, and until 1024 others have
        waited since; then the number may be another's. The engine's hooks know it by another one.
        """
        return self._gather("tenant")

    @property
    def tenant_queued(self) -> IntArray:
        """Choices of the request's tenant that wait for a first seat, an arrival's own left out."""
        return self._gather("tenant_queued")

    @property
    def deadline_s(self) -> FloatArray:
        """When the request is given up, on the clock of `ServiceView.now_s`; +inf: never."""
        return self._gather("deadline_s")

    @property
    def ttft_target_s(self) -> FloatArray:
        """Seconds from arrival within which the client wants the first token; +inf: no target."""
        return self._gather("ttft_target_s")

    @property
    def tpot_target_s(self) -> FloatArray:
        """Seconds within which the client wants each further token; +inf: no target."""
        return self._gather("tpot_target_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceView:
    """The service's situation at an arrival; what the engine does, as it last told."""

    step_id: int  # counts the arrivals about which hooks were asked
    now_s: float  # monotonic seconds
    queued: int  # choices that wait for a first seat
    max_queued: int  # of which there can be no more
    queued_tokens: int  # of the prompts of those that wait
    running: int  # requests with a seat, one a choice
    free_blocks: int  # free or cached and unheld
    total_blocks: int
    block_size: int  # tokens
    # Seconds until those that wait now have seats, at the pace of late; 0: nobody waits, or no pace
    wait_s: float = 0.0
    # Numbers of the tenants of whom somebody waits, or did lately, by their names
    tenants: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request is not taken in."""

    reason: str  # for the client: a sentence of at most 200 characters that can be printed
    limit: Literal["tenant", "service"]  # whose is reached: 429, or 503 over HTTP
    retry_after_s: float = 1.0  # from 0 to a day
