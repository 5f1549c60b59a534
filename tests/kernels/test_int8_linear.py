"""Int8 products: the reference is exact, and kernels of every level have its bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cadenza.kernels.int8_linear import (
    Int8Weight,
    PackedInt8Weight,
    TwiceQuantised,
    int8_linear_reference,
    pack_int8,
    quantise_rows,
)
from cadenza.kernels.linear import linear, native
from cadenza.kernels.quantised_linear import quantise
from tests.kernels.conftest import (
    MOST_ROWS,
    assert_close,
    assert_rows_are_independent,
    randn,
    same_bits,
)

needs_library = pytest.mark.skipif(not native.levels(), reason="there was no compiler")

DTYPES = (torch.float32, torch.bfloat16)
LEVELS = native.levels(torch.int8) or ("portable",)  # skipped, where there are none
# out, in: panels, fours and 64s of inputs with a remainder and without, and sums beyond 2^24
SHAPES = ((1, 1), (3, 5), (31, 33), (40, 72), (64, 2), (100, 577), (576, 1536), (33, 8192))
ROWS = (0, 1, 2, 5, 6, 7, 11, 12, 13, 16, 17, 32, 33, 40, 97)
NOT_FINITE = (float("nan"), float("inf"), float("-inf"))
LONGEST = 1 << 16


def special_rows(inputs: int) -> Tensor:
    """Rows of zeros, of extremes of fp32, of one value alone, and with what is not finite."""
    rows = randn(12, inputs, seed=5)
    rows[0] = 0.0
    rows[1] = -0.0
    rows[2] *= 1e-40  # too small for a scale
    rows[3] = 2.0**-119
    rows[4] = 3e38
    rows[5] = -3e38
    rows[6] *= 1e-30
    rows[7] = 0.0
    rows[7, -1] = -5.0
    for row, value in zip(range(8, 11), NOT_FINITE, strict=True):
        rows[row, row % inputs] = value
    rows[11] = float("nan")
    return rows


def test_a_row_is_quantised_by_its_largest_value():
    x = torch.cat([randn(7, 100), special_rows(100)[:8]])

    codes, scales = quantise_rows(x)

    assert codes.dtype == torch.int8
    assert int(codes.min()) == -127  # and never -128
    assert int(codes.max()) == 127
    largest = x.abs().amax(1)
    has_codes = largest >= 2.0**-119
    assert torch.equal(codes.abs().amax(1) == 127, has_codes)
    assert torch.equal(scales > 0, has_codes)
    error = (codes.double() * scales.double().unsqueeze(1) - x.double()).abs().amax(1)
    assert bool((error <= 0.50001 * largest / 127)[has_codes].all())
    assert torch.equal(quantise_rows(x[3:4])[0], codes[3:4])


def test_halves_are_rounded_to_even_codes():
    codes, _ = quantise_rows(torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]]))

    assert codes.tolist() == [[127, 0, 2, 2, 0, -2]]


@pytest.mark.parametrize("inputs", [1, 1023, 1024, 1025, 5000])
def test_sums_of_the_reference_are_exact(inputs: int):
    weight, x = quantise(randn(33, inputs, seed=1), torch.int8), randn(9, inputs)
    x[0], weight.codes[0] = 1.0, 127  # the largest sum
    x[1], weight.codes[1] = 1.0, -127

    found = int8_linear_reference(x, weight)

    codes, scales = quantise_rows(x)
    sums = (codes.long().unsqueeze(1) * weight.codes.long()).sum(2)
    assert int(sums[0, 0]) == 127 * 127 * inputs
    assert same_bits(found, sums.float() * scales.unsqueeze(1) * weight.scales)


def test_products_are_near_those_of_what_was_not_quantised():
    weight, x = randn(64, 576, seed=1), randn(16, 576)
    expected = x.double() @ weight.double().t()

    assert_close("product", linear(x, pack_int8(weight)), expected, 0.02)


@needs_library
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_level_has_the_bits_of_the_reference(
    shape: tuple[int, int], dtype: torch.dtype, level: str
):
    weight = randn(*shape, seed=1).to(dtype)
    weight[-1] = 0.0
    packed, quantised = PackedInt8Weight(weight, level), quantise(weight, torch.int8)
    assert packed.out_features == shape[0]
    special = special_rows(shape[1]).to(dtype)
    for x in (*(randn(rows, shape[1], dtype=dtype, seed=rows) for rows in ROWS), special):
        expected = int8_linear_reference(x, quantised)

        exact, rounded = packed.multiply(x, torch.float32), packed.multiply(x, torch.bfloat16)

        is_number = ~expected.isnan()
        assert torch.equal(exact.isnan(), ~is_number)
        assert same_bits(exact[is_number], expected[is_number]), f"{len(x)} rows differ"
        assert same_bits(rounded[is_number], expected[is_number].bfloat16())
    # exact are those of the special rows: nobody else's have changed for what is not finite there
    assert torch.equal(exact.isnan().all(1), ~special.isfinite().all(1))
    assert torch.equal(exact.isnan().any(1), ~special.isfinite().all(1))


@needs_library
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_are_exact(sign: int, level: str):
    """Instructions that would saturate, and sums that come near to 2^31."""
    weight = torch.full((40, LONGEST), float(sign))
    weight[1] = -sign
    weight[2, ::2] = 0.0
    x = torch.ones(3, LONGEST)
    x[1] = -1.0
    x[2, ::2] = -1.0
    packed, quantised = PackedInt8Weight(weight, level), quantise(weight, torch.int8)

    assert same_bits(packed.multiply(x), int8_linear_reference(x, quantised))


@needs_library
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(100, 577), (200, 576)], ids=str)
def test_a_row_is_the_same_in_any_batch(shape: tuple[int, int], level: str, threads: int):
    packed = PackedInt8Weight(randn(*shape, dtype=torch.bfloat16, seed=1), level)
    rows = randn(MOST_ROWS, shape[1], dtype=torch.bfloat16)

    assert_rows_are_independent(packed.multiply, rows)


@pytest.mark.parametrize("make", [Int8Weight, pack_int8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("poison", NOT_FINITE)
def test_a_weight_that_is_not_finite_is_refused(
    poison: float, dtype: torch.dtype, make: Callable[[Tensor], object]
):
    weight = randn(70, 45, dtype=dtype, seed=1)
    weight[33, 7] = poison

    with pytest.raises(ValueError, match="a weight that is not finite cannot be quantised"):
        make(weight)


@pytest.mark.parametrize("make", [Int8Weight, pack_int8])
@pytest.mark.parametrize("sizes", [(3,), (3, 0), (1, LONGEST + 1)])
def test_a_weight_of_another_shape_is_refused(
    sizes: tuple[int, ...], make: Callable[[Tensor], object]
):
    with pytest.raises(ValueError, match=r"is \[outputs, 1 to 65,536 inputs\], not \[[0-9, ]+\]$"):
        make(torch.zeros(sizes))


@needs_library
def test_a_packed_weight_takes_a_byte_a_value_and_keeps_nothing_of_the_tensor():
    weight, x = randn(64, 128, seed=1), randn(3, 128)
    packed = pack_int8(weight)
    assert isinstance(packed, PackedInt8Weight)
    expected = packed.multiply(x)
    weight.zero_()

    assert same_bits(packed.multiply(x), expected)
    found = native.library()
    assert found is not None
    assert found.packed_bytes(64, 128, packed.format) == 64 * 128 + 64 * 8


@needs_library
def test_memory_in_another_order_gives_the_same():
    weight, x = randn(40, 72, seed=1), randn(20, 72)
    expected = PackedInt8Weight(weight).multiply(x)

    assert same_bits(PackedInt8Weight(weight.t().contiguous().t()).multiply(x), expected)
    assert same_bits(PackedInt8Weight(weight).multiply(x.t().contiguous().t()), expected)


def test_what_is_quantised_twice_loses_nothing_but_of_the_weight():
    weight, x = randn(64, 576, seed=1), randn(16, 576)
    x[:, 7] *= 100.0
    x[3] = 0.0
    codes, scales = quantise(weight, torch.int8)
    expected = x.double() @ (codes.double() * scales.double().unsqueeze(1)).t()

    found = linear(x, TwiceQuantised(weight))

    assert_close("twice", found, expected, 5e-4)
    once = (linear(x, pack_int8(weight)).double() - expected).abs().max()
    assert float((found.double() - expected).abs().max()) < float(once) / 50
    x[5, 5] = float("nan")
    again = linear(x, TwiceQuantised(weight))
    assert again[5].isnan().all()
    assert same_bits(again[torch.arange(16) != 5], found[torch.arange(16) != 5])


def test_without_the_library_the_reference_multiplies(monkeypatch: pytest.MonkeyPatch):
    weight, x = randn(40, 72, seed=1), randn(20, 72, dtype=torch.bfloat16)
    expected = int8_linear_reference(x, quantise(weight, torch.int8))
    monkeypatch.setattr(native, "library", lambda: None)

    packed = pack_int8(weight)

    assert isinstance(packed, Int8Weight)
    assert packed.out_features == 40
    assert same_bits(linear(x, packed), expected.bfloat16())
    assert same_bits(linear(x, packed, torch.float32), expected)
