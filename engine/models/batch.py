"""What a model's forward pass needs to know of a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from cadenza.kernels.paged_attention import QueryTiles

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBatch:
    """One step: tokens of many rows, one row after another.

    Tensors are int64, on the model's device. A token whose block is negative is padding, whose keys
    and values are not written, and whose results mean nothing.
    """

    tokens: Tensor  # [tokens]
    positions: Tensor  # [tokens], in the row's sequence
    blocks: Tensor  # [tokens], cache block that takes the token's keys and values
    offsets: Tensor  # [tokens], place in that block
    num_context: Int32Array  # [rows], tokens whose keys and values are in the cache already
    num_new: Int32Array  # [rows]
    block_tables: Int32Array  # [rows, blocks]
    tiles: tuple[QueryTiles, ...] = ()  # what attention is cut into, on the device, if by Triton
