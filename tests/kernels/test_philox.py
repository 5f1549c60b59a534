"""Counter-based random numbers."""

from __future__ import annotations

import math

import pytest
import torch

from cadenza.kernels.philox import gumbel_noise, gumbel_noise_at, philox_4x32_10

# kat_vectors of Random123 1.14: counter, key, answer
KNOWN_ANSWERS = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def words(text: str) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([int(word, 16)]) for word in text.split())


def philox_in_integers(counter: list[int], key: list[int]) -> list[int]:
    """The definition, in Python's own integers."""
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (second >> 32) ^ counter[1] ^ key[0],
            second & 0xFFFFFFFF,
            (first >> 32) ^ counter[3] ^ key[1],
            first & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS, ids=["zeros", "ones", "pi"])
def test_the_published_vectors_come_out(counter: str, key: str, answer: str):
    found = philox_4x32_10(words(counter), words(key))  # type: ignore[arg-type]

    assert " ".join(f"{int(word):08x}" for word in found) == answer


def test_noise_is_the_documented_function_of_its_name():
    """Seed low word first; counter (position, choice, draw // 4, 0); word draw % 4."""
    seeds = [0, -1, 0x1234_5678_9ABC_DEF0, -0x7FFF_FFFF_0000_0001]
    positions, choices, draws = [0, 3, 4095, 2**31 - 1], [0, 1, 2, 127], 11

    noise = gumbel_noise(*(torch.tensor(names) for names in (seeds, positions, choices)), draws)

    assert noise.shape == (4, draws)
    for row, seed in enumerate(seeds):
        key = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
        for draw in range(draws):
            counter = [positions[row], choices[row], draw // 4, 0]
            uniform = (philox_in_integers(counter, key)[draw % 4] + 0.5) / 2**32
            expected = -math.log(-math.log1p(-uniform))
            # fp32: the uniform number has 24 bits, which matter where it is near 1
            assert float(noise[row, draw]) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_noise_has_the_moments_of_a_gumbel_variable():
    seeds = torch.arange(64)
    noise = gumbel_noise(seeds, torch.zeros(64).long(), torch.zeros(64).long(), 4096).double()

    assert noise.isfinite().all()
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.03)


def test_noise_of_a_row_does_not_depend_on_the_other_rows_nor_on_the_number_of_draws(threads: int):
    seeds, positions, choices = (torch.randint(0, 2**31, (70,)) for _ in range(3))
    together = gumbel_noise(seeds, positions, choices, 1003)
    for row in (0, 31, 69):
        one = slice(row, row + 1)
        alone = gumbel_noise(seeds[one], positions[one], choices[one], 500)
        assert torch.equal(alone[0], together[row, :500])


def test_noise_of_some_draws_is_that_of_all():
    seeds, positions, choices = (torch.randint(0, 2**31, (3,)) for _ in range(3))
    draws = torch.randint(0, 1003, (3, 57))

    found = gumbel_noise_at(seeds, positions, choices, draws)

    assert torch.equal(found, gumbel_noise(seeds, positions, choices, 1003).gather(1, draws))
