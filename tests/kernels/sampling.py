"""What the tests of sampling share: settings as arrays, and a token by its definition in NumPy."""

from __future__ import annotations

import ctypes
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cadenza.kernels.native import library
from cadenza.kernels.sampling import SETTINGS, SettingsArray, native

LEVELS = native.levels()[:3] or (
    "portable",
)  # above, as AVX-512 does; skipped, where there are none
_OFF = {"top_p": 1.0, "temperature": 1.0}


def settings(**columns: float | list[float]) -> SettingsArray:
    """Rows of settings, as many as the longest column; what isn't named is off, or 0."""
    named = {
        name: np.atleast_1d(np.array(column, dtype=SETTINGS[name]))
        for name, column in (_OFF | columns).items()
    }
    rows = np.zeros(max(len(column) for column in named.values()), dtype=SETTINGS)
    for name, column in named.items():
        rows[name] = column
    return rows


def noise(setting: SettingsArray, num_tokens: int, level: str = "portable") -> Tensor:
    """The noise of the first tokens [num_tokens], as C++ computes it."""
    found = library()
    assert found is not None
    result = torch.full((num_tokens,), math.nan)
    found.functions.cadenza_noise(
        found.levels.index(level),
        ctypes.c_void_p(np.atleast_1d(setting).ctypes.data),
        ctypes.c_int64(num_tokens),
        ctypes.c_void_p(result.data_ptr()),
    )
    return result


class Drawn(NamedTuple):
    """A token by the definition, and how far from the next best one."""

    token: int
    margin: float


def definition(logits: Tensor, setting: SettingsArray, top_p: float) -> Drawn:
    """Draw from one row [vocab_size]: all sorted, masses in double, scores in fp32."""
    values = logits.numpy()
    scaled = (values - values.max()) / np.float32(setting["temperature"])
    order = np.lexsort((np.arange(len(scaled)), -scaled))
    if 0 < setting["top_k"] < len(order):
        order = order[: setting["top_k"]]
    if top_p < 1.0:
        mass = np.exp(scaled[order].astype(np.float64))
        before = np.cumsum(mass) - mass
        order = order[: max(1, int((before < top_p * mass.sum()).sum()))]
    if setting["min_p"] > 0.0:
        order = order[scaled[order] >= np.float32(math.log(min(setting["min_p"], 1.0)))]
    scores = scaled + noise(setting, len(scaled)).numpy()
    kept = np.full_like(scores, -np.inf)
    kept[order] = scores[order]
    token = int(kept.argmax())
    rest = np.delete(kept, token)
    return Drawn(token, float(kept[token] - rest.max()) if len(rest) else math.inf)


def tokens_by_definition(logits: Tensor, setting: SettingsArray) -> set[int]:
    """What a row may draw: exponentials are rounded, so top-p's sum is right to 1e-6."""
    top_p = float(setting["top_p"])
    if top_p >= 1.0:
        return {definition(logits, setting, top_p).token}
    return {definition(logits, setting, top_p * near).token for near in (1 - 1e-6, 1, 1 + 1e-6)}
