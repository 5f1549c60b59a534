"""One row's cold state: what is looked at only when the row changes state."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.prefix import BlockKey

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request as it enters the scheduler."""

    request: int  # unique among all that this scheduler has seen
    prompt: Tokens  # at least one id
    emitted: Tokens = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    max_tokens: int  # output tokens, emitted ones included
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    priority: int = 0  # lower is earlier
    cache_salt: str = ""


@dataclass(slots=True, eq=False)
class Request:
    """The tokens of a row and the keys of its full blocks.

    `tokens` holds everything up to the last full block that the table flushed; what came after
    sits in the table's tail buffer until the block is full or the row loses its seat.
    """

    tokens: Tokens
    stop_token_ids: frozenset[int]
    salt: str
    keys: list[BlockKey] = field(default_factory=list)

    def make_room(self, capacity: int) -> None:
        """Let `tokens` grow in place up to `capacity` ids; called once, at the first admission."""
        if len(self.tokens) < capacity:
            roomy = np.empty(capacity, dtype=np.int32)
            roomy[: len(self.tokens)] = self.tokens
            self.tokens = roomy
