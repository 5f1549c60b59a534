"""Rotary positions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cadenza.kernels.rotary_embedding import rotary_embedding, rotary_tables
from tests.kernels.conftest import MOST_ROWS, assert_close, assert_rows_are_independent, randn

DTYPES = (torch.float32, torch.bfloat16)
# fp32: angles of up to 2,000 radians have an error of 6e-5; bf16: half a unit in its last place
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 4e-3}


def frequencies(head_dim: int) -> Tensor:
    return 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (3, 6), (12, 64), (5, 128)])
def test_pairs_turn_as_complex_numbers(heads: int, head_dim: int, dtype: torch.dtype):
    positions = torch.tensor([0, 1, 17, 1999])
    x = randn(len(positions), heads, head_dim, dtype=dtype)
    pairs = torch.complex(*x.double().chunk(2, dim=-1))
    angles = positions.double()[:, None, None] * frequencies(head_dim).double()
    turned = pairs * torch.polar(torch.ones_like(angles), angles)

    tables = rotary_tables(frequencies(head_dim), 2000).at(positions)
    found = rotary_embedding(x, tables.cos, tables.sin)

    assert found.dtype == dtype
    assert_close("rotary", found, torch.cat((turned.real, turned.imag), -1), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_token_is_the_same_in_any_batch(dtype: torch.dtype, threads: int):
    tables = rotary_tables(frequencies(66), 1000)
    x = randn(MOST_ROWS, 5, 66, dtype=dtype)

    def at_position_of_content(rows: Tensor) -> Tensor:
        positions = (rows[:, 0, 0].float().abs() * 300).long()
        cos, sin = tables.at(positions)
        return rotary_embedding(rows, cos, sin)

    assert_rows_are_independent(at_position_of_content, x)


def test_an_angle_is_the_same_in_a_longer_table():
    short, long = rotary_tables(frequencies(64), 77), rotary_tables(frequencies(64), 1000)

    assert torch.equal(short.cos, long.cos[:77])
    assert torch.equal(short.sin, long.sin[:77])


def test_dimensions_past_the_rotated_ones_stay():
    x = randn(3, 2, 10)
    tables = rotary_tables(torch.tensor([1.0, 0.1, 0.01]), 3)

    found = rotary_embedding(x, tables.cos, tables.sin)

    assert torch.equal(found[..., 6:], x[..., 6:])
    assert torch.equal(found[..., :6], rotary_embedding(x[..., :6], tables.cos, tables.sin))


def test_a_factor_stretches_what_is_rotated():
    x = randn(3, 2, 6)
    once, twice = (rotary_tables(torch.tensor([1.0, 0.1, 0.01]), 3, f) for f in (1.0, 2.0))

    found = rotary_embedding(x, twice.cos, twice.sin)

    assert torch.equal(found, 2.0 * rotary_embedding(x, once.cos, once.sin))
