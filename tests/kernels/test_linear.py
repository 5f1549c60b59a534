"""Row-invariant products."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from cadenza.kernels.linear import Weight, linear, linear_reference, onednn, pack
from tests.kernels.conftest import (
    MOST_ROWS,
    assert_close,
    assert_rows_are_independent,
    randn,
    same_bits,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# fp32: rounding of a sum of up to 1,537 terms; the others: half a unit in their last place
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}
SHAPES = ((1, 1), (3, 5), (40, 72), (960, 576), (576, 1536), (577, 1537))  # out, in


def packings(weight: Tensor) -> Iterator[tuple[str, Weight]]:
    """The weight as it is packed here, and as it is where our kernels were not compiled."""
    yield "packed", pack(weight)
    if onednn.is_supported(weight.dtype):
        yield "oneDNN", onednn.PackedWeight(weight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_equal_sums_in_double_precision(shape: tuple[int, int], dtype: torch.dtype):
    weight = randn(*shape, dtype=dtype, seed=1)
    packed = dict(packings(weight))
    assert {one.out_features for one in packed.values()} == {shape[0]}
    for rows in (0, 1, 15, 17, 70):
        x = randn(rows, shape[1], dtype=dtype, seed=rows)
        expected = torch.einsum("ri,oi->ro", x.double(), weight.double())
        products = {name: linear(x, one) for name, one in packed.items()}
        for name, y in (products | {"tiles": linear_reference(x, weight)}).items():
            assert y.dtype == dtype
            assert y.shape == (rows, shape[0])
            if rows:
                assert_close(f"{name}, {rows} rows", y, expected, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_is_the_same_in_any_batch(shape: tuple[int, int], dtype: torch.dtype, threads: int):
    weight = randn(*shape, dtype=dtype, seed=1)
    x = randn(MOST_ROWS, shape[1], dtype=dtype)
    for _, packed in packings(weight):
        assert_rows_are_independent(packed.multiply, x)
    assert_rows_are_independent(lambda rows: linear_reference(rows, weight), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_row_count_in_use_equals_tiles_of_sixteen_on_one_thread(
    dtype: torch.dtype, threads: int
):
    """The self-check at packing, repeated over more rows than it takes."""
    if not onednn.is_supported(dtype):
        pytest.skip(f"oneDNN has no {dtype} products on this machine, and nothing uses them")
    weight = onednn.PackedWeight(randn(576, 1536, dtype=dtype))
    x = randn(1920, 1536, dtype=dtype, seed=3)
    torch.set_num_threads(1)
    tiles = torch.cat([weight.product(tile) for tile in x.split(16)])
    torch.set_num_threads(threads)

    assert len(weight.row_counts) > 1
    for count in weight.row_counts:
        found = torch.cat([weight.product(part) for part in x.split(count) if len(part) == count])
        assert same_bits(found, tiles[: len(found)]), f"{count} rows differ"


def test_a_row_count_that_is_not_bit_equal_is_not_used(monkeypatch: pytest.MonkeyPatch):
    multiply = onednn._multiply

    def blocked_by_rows(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
        return multiply(x, packed) + (1e-3 if len(x) in (4, 64) else 0.0)

    monkeypatch.setattr(onednn, "_multiply", blocked_by_rows)
    monkeypatch.setattr(onednn, "_checked", {})
    weight, x = randn(32, 48, seed=1), randn(MOST_ROWS, 48)
    packed = onednn.PackedWeight(weight)

    assert not {4, 64} & set(packed.row_counts)
    assert_close("product", packed.multiply(x), x.double() @ weight.double().t(), 5e-6)


def test_where_threads_change_the_bits_one_thread_multiplies(monkeypatch: pytest.MonkeyPatch):
    multiply = onednn._multiply

    def split_by_threads(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
        return multiply(x, packed) + (1e-3 if torch.get_num_threads() > 1 else 0.0)

    monkeypatch.setattr(onednn, "_multiply", split_by_threads)
    monkeypatch.setattr(onednn, "_checked", {})
    weight, x = randn(32, 48, seed=1), randn(MOST_ROWS, 48)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    packed = onednn.PackedWeight(weight)
    found = packed.multiply(x)
    after = torch.get_num_threads()
    torch.set_num_threads(before)

    assert packed.row_counts == (16,)
    assert after == 2
    assert_close("product", found, x.double() @ weight.double().t(), 5e-6)


def test_a_vector_is_no_weight():
    with pytest.raises(ValueError, match="2 dimensions"):
        pack(torch.zeros(3))
