"""Masks in plain torch: this is the specification. Biases come first, then what is forbidden."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cadenza.kernels.logit_masks.masks import FORBIDDEN, RowMask


def masked_reference(logits: Tensor, mask: RowMask) -> Tensor:
    """Return one row's logits [vocab_size] fp32 on the CPU, with biases, -inf where forbidden.

    Biases of one token are added one after another. `logits` is not written to; it is returned
    itself where nothing applies.
    """
    if len(mask.bias_ids):
        ids, biases = torch.from_numpy(mask.bias_ids), torch.from_numpy(mask.biases)
        logits = logits.index_add(0, ids, biases)
    if mask.allowed is not None:
        bits = np.unpackbits(mask.allowed.view(np.uint8), count=len(logits), bitorder="little")
        logits = logits.masked_fill(torch.from_numpy(bits == 0), FORBIDDEN)
    if mask.forbidden:
        logits = logits.index_fill(0, torch.tensor(mask.forbidden), FORBIDDEN)
    return logits
