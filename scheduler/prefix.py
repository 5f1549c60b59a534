"""Keys of full blocks: a SHA-256 chain over salt and tokens.

A key names a block's tokens and everything before them, so equal keys mean equal keys and values.
Every part is tagged, so that a salt can never pass for tokens or for another kind of part.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec
import numpy as np
import numpy.typing as npt

BlockKey = bytes

_KEY_BYTES = 32


class BlockKeys(msgspec.Struct, frozen=True, gc=False):
    """The keys of successive blocks in one piece of memory, as thousands of prompts may wait."""

    packed: bytes = b""

    def __len__(self) -> int:
        return len(self.packed) // _KEY_BYTES

    def __getitem__(self, index: int) -> BlockKey:
        """The key of block `index`, which is covered; not from the end."""
        return self.packed[index * _KEY_BYTES : (index + 1) * _KEY_BYTES]

    def find(self, index: int) -> BlockKey | None:
        """The key of block `index`; None if that is not covered."""
        return self.packed[index * _KEY_BYTES : (index + 1) * _KEY_BYTES] or None

    def behind(self, num: int) -> BlockKeys:
        """All but the first `num`."""
        return BlockKeys(self.packed[num * _KEY_BYTES :]) if num else self


NO_KEYS = BlockKeys()


def root_key(salt: str) -> BlockKey:
    """The parent of a row's first block. Rows share blocks only under equal salts."""
    return sha256(b"salt\0" + salt.encode()).digest()


def block_key(parent: BlockKey, tokens: bytes) -> BlockKey:
    """The key of one full block after `parent`; its ids as little-endian int32."""
    return sha256(b"block\0" + parent + tokens).digest()


def extend_keys(
    keys: BlockKeys, salt: str, tokens: npt.NDArray[np.int32], block_size: int, num: int
) -> BlockKeys:
    """The keys of the first `num` blocks of `tokens`, or of more; `keys` are those of the first."""
    known = len(keys)
    if known >= num:
        return keys
    parent = keys[known - 1] if known else root_key(salt)
    first, size = known * block_size, 4 * block_size
    raw = tokens[first : num * block_size].astype("<i4").tobytes()
    packed = [keys.packed]
    for start in range(0, len(raw), size):
        parent = block_key(parent, raw[start : start + size])
        packed.append(parent)
    return BlockKeys(b"".join(packed))
