"""All that changes a row's logits before it draws: its constraints, then its penalties."""

from __future__ import annotations

import torch
from torch import Tensor

from cadenza.engine.constraints import Constraints, constraints_of
from cadenza.engine.penalties import Penalties, penalties_of
from cadenza.scheduler.plan import Seated
from cadenza.wire.messages import Sampling


class Shaping:
    """What changes the logits of one seat, in vLLM's order."""

    def __init__(self, parts: tuple[Constraints | Penalties, ...]) -> None:
        self._parts = parts

    def add(self, token: int) -> None:
        """Note the output's next token."""
        for part in self._parts:
            part.add(token)

    def applied(self, logits: Tensor) -> Tensor:
        """Return one row's logits [vocab_size] as changed; `logits` is not written to.

        It is `logits` itself where nothing changes.
        """
        for part in self._parts:
            logits = part.applied(logits)
        return logits


def shaping_of(
    sampling: Sampling, seated: Seated, vocab_size: int, device: torch.device
) -> Shaping | None:
    """Return what changes the logits of a seat; None where nothing does."""
    constraints = constraints_of(sampling, seated, vocab_size, device)
    penalties = penalties_of(sampling, seated, vocab_size, device)
    parts = tuple(part for part in (constraints, penalties) if part is not None)
    return Shaping(parts) if parts else None
