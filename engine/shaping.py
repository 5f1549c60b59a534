"""All that changes a row's logits before it draws: its constraints, then its penalties."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cadenza.engine.constraints import Constraints, constraints_of
from cadenza.engine.penalties import Penalties, penalties_of
from cadenza.kernels.logit_masks import HostMasks, Masks, apply_masks, masks_of
from cadenza.scheduler.plan import Seated
from cadenza.wire.messages import Sampling


class Shaping:
    """What changes the logits of one seat, in vLLM's order."""

    def __init__(self, constraints: Constraints | None, penalties: Penalties | None) -> None:
        self.constraints = constraints
        self.penalties = penalties

    def add(self, token: int) -> None:
        """Note the output's next token."""
        if self.constraints is not None:
            self.constraints.add(token)
        if self.penalties is not None:
            self.penalties.add(token)

    def applied(self, logits: Tensor) -> Tensor:
        """Return one row's logits [vocab_size] as changed; `logits` is not written to.

        It is `logits` itself where nothing changes. Constraints are applied on the CPU only.
        """
        if self.constraints is not None:
            logits = self.constraints.applied(logits)
        if self.penalties is not None:
            logits = self.penalties.applied(logits)
        return logits


def host_masks_of(shapings: Mapping[int, Shaping], vocab_size: int) -> HostMasks:
    """Return the constraints of a step's rows, row -> what changes its logits."""
    constraints = {row: shaping.constraints for row, shaping in shapings.items()}
    return masks_of(
        {row: found.mask() for row, found in constraints.items() if found is not None}, vocab_size
    )


def shaped_at_once(logits: Tensor, shapings: Mapping[int, Shaping], masks: Masks) -> Tensor:
    """Return a step's logits [rows, vocab_size] as changed, where Triton computes.

    masks: `host_masks_of` these, on the device. `logits` is not written to; it is returned itself
    where no row is changed.
    """
    if not shapings:
        return logits
    shaped = logits.clone(memory_format=torch.contiguous_format)
    apply_masks(shaped, masks)
    for row, shaping in shapings.items():
        if shaping.penalties is not None:
            shaped[row] = shaping.penalties.applied(shaped[row])
    return shaped


def shaping_of(
    sampling: Sampling, seated: Seated, vocab_size: int, device: torch.device
) -> Shaping | None:
    """Return what changes the logits of a seat; None where nothing does."""
    constraints = constraints_of(sampling, seated, vocab_size)
    penalties = penalties_of(sampling, seated, vocab_size, device)
    if constraints is None and penalties is None:
        return None
    return Shaping(constraints, penalties)
