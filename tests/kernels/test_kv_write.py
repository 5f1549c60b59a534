"""Writes into the paged cache."""

from __future__ import annotations

import pytest
import torch

from cadenza.kernels.kv_write import kv_write
from tests.kernels.conftest import randn, same_bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("block_size", "tokens"), [(1, 1), (4, 9), (16, 33)])
def test_tokens_land_in_their_slots_and_nowhere_else(
    block_size: int, tokens: int, dtype: torch.dtype
):
    num_blocks, layers, kv_heads, head_dim = 40, 3, 2, 6
    cache = randn(num_blocks, layers, 2, block_size, kv_heads, head_dim, dtype=dtype)
    expected = cache.clone()
    slots = torch.randperm(num_blocks * block_size)[:tokens].tolist()
    # keys come as a strided slice of the product of queries, keys and values
    keys = randn(tokens, 7, head_dim, dtype=dtype, seed=1)[:, 3:5]
    values = randn(tokens, kv_heads, head_dim, dtype=dtype, seed=2)
    for token, slot in enumerate(slots):
        block, offset = divmod(slot, block_size)
        expected[block, 1, 0, offset] = keys[token]
        expected[block, 1, 1, offset] = values[token]

    blocks, offsets = torch.tensor([divmod(slot, block_size) for slot in slots]).T
    kv_write(keys, values, cache[:, 1], blocks, offsets)

    assert same_bits(cache, expected)


def test_a_token_of_a_negative_block_is_not_written() -> None:
    cache = randn(3, 2, 4, 1, 6)
    expected = cache.clone()
    keys, values = randn(2, 1, 6, seed=1), randn(2, 1, 6, seed=2)
    expected[1, 0, 3], expected[1, 1, 3] = keys[1], values[1]

    kv_write(keys, values, cache, torch.tensor([-1, 1]), torch.tensor([2, 3]))

    assert same_bits(cache, expected)
