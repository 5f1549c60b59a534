"""Keys of full blocks: a SHA-256 chain over salt and tokens.

A key names a block's tokens and everything before them, so equal keys mean equal keys and values.
Every part is tagged, so that a salt can never pass for tokens or for another kind of part.
"""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import numpy.typing as npt

BlockKey = bytes


def root_key(salt: str) -> BlockKey:
    """The parent of a row's first block. Rows share blocks only under equal salts."""
    return sha256(b"salt\0" + salt.encode()).digest()


def block_key(parent: BlockKey, tokens: bytes) -> BlockKey:
    """The key of one full block after `parent`; its ids as little-endian int32."""
    return sha256(b"block\0" + parent + tokens).digest()


def extend_keys(
    keys: list[BlockKey], salt: str, tokens: npt.NDArray[np.int32], block_size: int, num: int
) -> None:
    """Append keys until `keys` covers the first `num` blocks of `tokens`."""
    if len(keys) >= num:
        return
    parent = keys[-1] if keys else root_key(salt)
    first, size = len(keys) * block_size, 4 * block_size
    raw = tokens[first : num * block_size].astype("<i4").tobytes()
    for start in range(0, len(raw), size):
        parent = block_key(parent, raw[start : start + size])
        keys.append(parent)
