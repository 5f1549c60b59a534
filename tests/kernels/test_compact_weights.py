"""bf16 weights in 12 bits a value: nothing is lost, and products have the bits of plain weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from cadenza.kernels.linear import native
from cadenza.kernels.linear.native import PackedWeight
from cadenza.kernels.native import BFLOAT16, COMPACT_BFLOAT16, library
from tests.kernels.conftest import randn, same_bits

found = library()
needs_library = pytest.mark.skipif(found is None, reason="there was no compiler")
LEVELS = tuple(
    name
    for number, name in enumerate(found.levels if found else ())
    if found and found.takes(number, COMPACT_BFLOAT16)
)
needs_level = pytest.mark.skipif(not LEVELS, reason="no level of this machine multiplies them")

PANEL, GROUP, CODES = 32, 32, 1024  # outputs, inputs, and where a group's codes begin
STRAY = np.dtype([("place", "<u4"), ("value", "<u2"), ("unused", "<u2")])
SHAPES = ((1, 1), (3, 5), (31, 33), (40, 72), (100, 577), (64, 1536), (33, 8192))


class PlainWeight(PackedWeight):
    @property
    def _formats(self) -> tuple[int, ...]:
        return (BFLOAT16,)


def of_all_sizes(out_features: int, in_features: int) -> Tensor:
    """Zeros of both signs, denormals, and some that are far smaller than their neighbours."""
    weight = randn(out_features, in_features, dtype=torch.bfloat16, seed=3)
    flat = weight.view(-1)
    flat[::7] = 0.0
    flat[1::13] = -0.0
    flat[2::2903] *= 2.0**-17
    flat[3::3001] *= 2.0**-100
    flat[4::103] = -1e-39
    return weight


WEIGHTS = {
    "normal": lambda *shape: randn(*shape, dtype=torch.bfloat16, seed=1),
    "of all sizes": of_all_sizes,
    "zero": lambda *shape: torch.zeros(*shape, dtype=torch.bfloat16),
    "tiny": lambda *shape: (randn(*shape, seed=2) * 2.0**-126).bfloat16(),
    "large": lambda *shape: (randn(*shape, seed=4) * 2.0**125).bfloat16(),
}


def spread(weight: Tensor) -> Tensor:
    """Half of the inputs far smaller than the others."""
    weight[:, ::2] *= 2.0**-20
    return weight


def with_outliers(weight: Tensor) -> Tensor:
    """A few inputs far larger than the others, as some models have them."""
    weight[:, ::50] *= 2.0**12
    return weight


TOO_DIFFERENT = {
    "spread": spread,
    "outliers": with_outliers,
    "powers": lambda weight: weight.pow(7),
    "one not finite": lambda weight: weight.index_fill(1, torch.tensor([7]), float("nan")),
}


def packed(weight: Tensor) -> npt.NDArray[np.uint8] | None:
    assert found is not None
    shape = (weight.shape[0], weight.shape[1])
    panels = torch.empty(found.packed_bytes(*shape, COMPACT_BFLOAT16), dtype=torch.uint8)
    if not found.fits(2, weight.data_ptr(), *shape, COMPACT_BFLOAT16):
        return None
    found.pack(2, weight.data_ptr(), *shape, BFLOAT16, COMPACT_BFLOAT16, panels.data_ptr())
    return panels.numpy()


def unpacked(panels: npt.NDArray[np.uint8], out_features: int, in_features: int) -> Tensor:
    """Read panels as compact.h says."""
    groups, num_panels = -(-in_features // GROUP), -(-out_features // PANEL)
    weight = np.zeros((num_panels * PANEL, groups * GROUP), np.uint16)
    for index, panel in enumerate(panels.reshape(num_panels, -1)):
        values = np.stack([group_of(panel, group, groups) for group in range(groups)])
        at = groups * (CODES + 512) + -(-groups // 64) * 64
        for place, value, _ in panel[at:].view(STRAY):
            if place < values.size:
                values.reshape(-1)[place] = value
        plain = values.reshape(groups, GROUP // 2, PANEL, 2).transpose(2, 0, 1, 3)
        weight[index * PANEL : (index + 1) * PANEL] = plain.reshape(PANEL, -1)
    kept = weight[:out_features, :in_features].astype(np.int16)
    return torch.from_numpy(kept).view(torch.bfloat16)


def group_of(panel: npt.NDArray[np.uint8], group: int, groups: int) -> npt.NDArray[np.uint16]:
    """The values that have a distance; others are anything."""
    bytes_ = panel[group * (CODES + 512) :]
    pairs = bytes_[:CODES].view("<u2").reshape(16, 32)
    fours = bytes_[CODES : CODES + 512].view("<u2").reshape(8, 32)
    rests = np.stack([pairs.byteswap(), pairs], axis=1).reshape(32, 32) & 0x807F
    codes = np.stack([fours >> shift & 15 for shift in (0, 4, 8, 12)], axis=1).reshape(32, 32)
    largest = int(panel[groups * (CODES + 512) + group])
    exponents = np.where(codes == 15, 0, largest - codes.astype(np.int64)) & 0xFF
    values: npt.NDArray[np.uint16] = rests | exponents << 7
    return values


@needs_library
@pytest.mark.parametrize("make", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_value_is_found_again(shape: tuple[int, int], make):
    weight = make(*shape)
    panels = packed(weight)

    assert panels is not None
    assert same_bits(unpacked(panels, *shape), weight)


@needs_library
def test_a_value_takes_twelve_bits_and_a_little():
    assert found is not None
    bits = 8 * found.packed_bytes(3072, 576, COMPACT_BFLOAT16) / (3072 * 576)
    assert 12 < bits < 12.2


@needs_library
def test_values_may_be_fourteen_powers_of_two_apart_and_some_of_them_more():
    weight = torch.ones(PANEL, 96, dtype=torch.bfloat16)
    weight[:, 1::2] = 2.0**-14
    panels = packed(weight)
    assert panels is not None
    assert not (panels[3 * 1536 + 64 :].view(STRAY)["place"] < weight.numel()).any()

    weight[0, :7] = 2.0**-15
    panels = packed(weight)
    assert panels is not None
    assert same_bits(unpacked(panels, PANEL, 96), weight)

    weight[0, 7] = 2.0**-15  # more than there is room for
    assert packed(weight) is None


@needs_level
@pytest.mark.parametrize("make", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_have_the_bits_of_plain_weights(shape: tuple[int, int], level: str, make):
    weight = make(*shape)
    compact, plain = PackedWeight(weight, level), PlainWeight(weight, level)
    assert (compact.format, plain.format) == (COMPACT_BFLOAT16, BFLOAT16)
    for rows in (1, 2, 8, 16, 17, 32, 33, 47, 64, 65, 200, 300):
        x = randn(rows, shape[1], dtype=torch.bfloat16, seed=rows)
        for dtype in (torch.bfloat16, torch.float32):
            assert same_bits(compact.multiply(x, dtype), plain.multiply(x, dtype)), f"{rows} rows"


@needs_level
@pytest.mark.parametrize("change", TOO_DIFFERENT.values(), ids=TOO_DIFFERENT)
@pytest.mark.parametrize("level", LEVELS)
def test_a_weight_that_does_not_fit_stays_plain(level: str, change):
    weight = change(randn(96, 200, dtype=torch.bfloat16, seed=1))
    stays = PackedWeight(weight, level)
    assert stays.format == BFLOAT16

    x = randn(5, 200, dtype=torch.bfloat16)
    assert same_bits(stays.multiply(x), PlainWeight(weight, level).multiply(x))


@needs_level
@pytest.mark.parametrize("change", [None, spread])
def test_no_memory_is_taken_but_for_the_panels_that_are_kept(monkeypatch, change):
    """Pieces of large pages are not given back."""
    taken: list[int] = []
    take = native._PAGES.take
    monkeypatch.setattr(native._PAGES, "take", lambda size: taken.append(size) or take(size))
    weight = randn(64, 96, dtype=torch.bfloat16)

    kept = PackedWeight(weight if change is None else change(weight))

    assert kept.format == (COMPACT_BFLOAT16 if change is None else BFLOAT16)
    assert found is not None
    assert taken == [found.packed_bytes(64, 96, kept.format)]


@needs_level
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_so(poison: float):
    """Among values so large that it is one of their neighbours, and zeros."""
    chance = torch.Generator().manual_seed(1)
    exponents = torch.randint(241, 255, (40, 64), generator=chance)
    rests = torch.randint(0, 256, (40, 64), generator=chance)
    bits = (rests >> 7 << 15) + (exponents << 7) + (rests & 127)
    weight = bits.to(torch.int32).to(torch.int16).view(torch.bfloat16)
    weight[3] = 0
    weight[33, 7] = poison
    x = (randn(3, 64, seed=1) * 2.0**-120).bfloat16()

    compact = PackedWeight(weight)
    y = compact.multiply(x)

    assert compact.format == COMPACT_BFLOAT16
    assert same_bits(y, PlainWeight(weight).multiply(x))
    assert (~y.isfinite()).any(0).tolist() == [output == 33 for output in range(40)]
