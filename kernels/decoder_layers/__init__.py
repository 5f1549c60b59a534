"""The layers of a decoder in one call: norms, products, rotary positions, attention, SwiGLU.

Only as C++ for the CPU: what it computes is specified by `engine/models/plain_layers.py`, which
puts the same together from one operation after another.
"""

from __future__ import annotations

from cadenza.kernels.decoder_layers.native import (
    DecoderShape,
    LayerWeights,
    NativeLayers,
    PartTimes,
    is_supported,
)

__all__ = ["DecoderShape", "LayerWeights", "NativeLayers", "PartTimes", "is_supported"]
