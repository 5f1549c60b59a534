"""The numbers behind a draw: random words, their noise, and the weights of logits."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
import torch

from cadenza.kernels.native import library
from cadenza.kernels.philox import gumbel_noise
from cadenza.kernels.sampling import native
from tests.kernels.conftest import same_bits
from tests.kernels.sampling import LEVELS, noise, settings

pytestmark = pytest.mark.skipif(not native.levels(), reason="there was no compiler")
each_level = pytest.mark.parametrize("level", LEVELS)


def noise_of(words: np.ndarray) -> np.ndarray:
    found = library()
    assert found is not None
    result = np.full(len(words), np.nan, dtype=np.float32)
    words = np.ascontiguousarray(words, dtype=np.uint32)
    found.functions.cadenza_noise_of(
        ctypes.c_void_p(words.ctypes.data),
        ctypes.c_int64(len(words)),
        ctypes.c_void_p(result.ctypes.data),
    )
    return result


def weights_of(scaled: np.ndarray, level: str) -> tuple[np.ndarray, float]:
    """The weights and their sum."""
    found = library()
    assert found is not None
    room = np.zeros((2, len(scaled) + 16), dtype=np.float32)
    room[0, : len(scaled)] = scaled
    function = found.functions.cadenza_weights
    function.restype = ctypes.c_double
    total = function(
        found.levels.index(level),
        ctypes.c_void_p(room[0].ctypes.data),
        ctypes.c_int64(len(scaled)),
        ctypes.c_void_p(room[1].ctypes.data),
    )
    return room[1, : len(scaled)].copy(), total


def units(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Errors in units in the last place of the exact value, as fp32."""
    return np.abs(found.astype(np.longdouble) - exact) / np.spacing(
        np.abs(exact).astype(np.float32)
    )


@each_level
def test_the_published_words_come_out(level: str):
    """Random123's answer to a counter and a key of zeros, and the reference's to others."""
    words = np.array([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], dtype=np.uint32)

    assert noise(settings()[0], 4, level).tolist() == noise_of(words).tolist()


@each_level
@pytest.mark.parametrize("size", [1, 63, 64, 1003])
def test_every_level_has_the_noise_that_the_reference_names(level: str, size: int):
    seeds = [0, 2**64 - 1, 0x1234_5678_9ABC_DEF0, 2**63 + 5]
    positions, choices = [0, 3, 4095, 2**31 - 1], [0, 1, 2, 127]
    rows = settings(seed=seeds, position=positions, choice=choices)
    names = [np.array(seeds, dtype=np.uint64).view(np.int64), positions, choices]
    expected = gumbel_noise(*(torch.tensor(np.array(name)) for name in names), size)

    for row, setting in enumerate(rows):
        found = noise(setting, size, level)
        # the reference rounds twice: near 1, its -log(1 - u) is wrong by 6e-8 at most
        assert torch.allclose(found, expected[row], rtol=1e-6, atol=3e-7)
        assert same_bits(found, noise(setting, size))


def test_noise_is_right_to_half_a_unit_in_the_last_place():
    chance = np.random.default_rng(1)
    ends = np.concatenate(
        [np.arange(5000), 2**32 - 1 - np.arange(5000), 2**31 + np.arange(-99, 99)]
    )
    powers = 2 ** np.arange(32)
    random = chance.integers(0, 2**32, 200_000)
    near_zero = np.uint64(2**32 * (1 - math.exp(-1))) + np.arange(2000)  # of the noise
    words = np.concatenate([ends, powers, powers - 1, random, near_zero]).astype(np.uint32)
    uniform = (words.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    uniform = np.minimum(uniform, np.float32(1 - 2.0**-24)).astype(np.longdouble)
    exact = -np.log(-np.log1p(-uniform))

    found = noise_of(words)

    error = units(found, exact)
    assert np.isfinite(found).all()
    assert error.max() < 0.5 + 1e-6, words[error.argmax()]


def test_noise_stays_between_the_bounds_that_the_passes_count_on():
    smallest, largest = noise_of(np.array([2**32 - 1, 0]))

    assert -2.82 < smallest < -2.81
    assert 22.87 < largest < 22.875


def test_smaller_words_have_more_noise():
    words = np.unique(np.random.default_rng(2).integers(0, 2**32, 100_000))

    assert (np.diff(noise_of(words)) <= 0).all()


@each_level
def test_weights_are_right_to_two_units_in_the_last_place(level: str):
    chance = np.random.default_rng(3)
    scaled = np.concatenate(
        [-chance.uniform(0, 87, 100_000), -chance.exponential(1, 100_000), [-0.0, -87]]
    )
    scaled = scaled.astype(np.float32)

    found, _ = weights_of(scaled, level)

    assert units(found, np.exp(scaled.astype(np.longdouble))).max() < 2
    assert found[-2] == 1.0
    for least in (-87.001, -104.0, -1e30, -math.inf):
        assert weights_of(np.array([least]), level)[0].tolist() == [0.0]


def test_weights_and_their_sum_have_the_same_bits_at_every_level():
    scaled = -np.random.default_rng(4).exponential(5, 10_007).astype(np.float32)
    expected, total = weights_of(scaled, "portable")
    assert total == pytest.approx(float(expected.astype(np.float64).sum()), rel=1e-14)

    for level in LEVELS:
        found, sum_of_found = weights_of(scaled, level)
        assert np.array_equal(found, expected)
        assert sum_of_found == total
