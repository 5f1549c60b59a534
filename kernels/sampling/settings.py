"""How rows are sampled, as columns that Python and C++ both read."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

# A row's settings, laid out as Settings in native/sampling.h
SETTINGS = np.dtype(
    [
        ("seed", np.uint64),
        ("temperature", np.float64),  # 0: greedy; else at least LEAST_TEMPERATURE
        ("top_p", np.float64),  # from 1: off
        ("min_p", np.float64),  # 0: off
        ("top_k", np.int32),  # 0: off
        ("position", np.uint32),  # of the token in its sequence; names the noise, as choice does
        ("choice", np.uint32),
    ],
    align=True,
)
LEAST_TEMPERATURE = 1e-5  # lower ones would overflow fp32

SettingsArray: TypeAlias = npt.NDArray[np.void]  # of dtype SETTINGS
Int32Array: TypeAlias = npt.NDArray[np.int32]
Setting: TypeAlias = Any  # one element of it
