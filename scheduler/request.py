"""One row's cold state: what is looked at only when the row changes state."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.prefix import BlockKey

Tokens = npt.NDArray[np.int32]


MAX_STOP_TOKEN_IDS = 16


class Refused(ValueError):
    """The scheduler cannot take the request as it is. The sentence may be shown to the client."""


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

    def check(self, max_model_len: int) -> None:
        """Make sure that the request can run, alone at least.

        Raises:
            Refused: no prompt, nothing to generate, no room for a token, too many stop token ids.
        """
        known = len(self.prompt) + len(self.emitted)
        if not len(self.prompt):
            raise Refused("the prompt is empty")
        if known >= max_model_len:
            raise Refused(
                f"{known} tokens leave no room to generate within max_model_len {max_model_len}"
            )
        if len(self.emitted) >= self.max_tokens:
            raise Refused(
                f"{len(self.emitted)} emitted tokens leave none of max_tokens {self.max_tokens}"
            )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise Refused(f"there are more than {MAX_STOP_TOKEN_IDS} stop token ids")


@dataclass(slots=True, eq=False)
class Request:
    """The tokens of a row and the keys of its full blocks.

    `tokens` holds everything up to the last full block that the table flushed; what came after
    sits in the table's tail buffer until the block is full or the row loses its seat.
    """

    tokens: Tokens
    salt: str
    keys: list[BlockKey] = field(default_factory=list)

    def make_room(self, capacity: int) -> None:
        """Let `tokens` grow in place up to `capacity` ids; called once, at the first admission."""
        if len(self.tokens) < capacity:
            roomy = np.empty(capacity, dtype=np.int32)
            roomy[: len(self.tokens)] = self.tokens
            self.tokens = roomy
