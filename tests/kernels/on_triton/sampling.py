"""Sampling: the tokens are those of the CPU."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch
from torch import Tensor

from cadenza.kernels.philox import gumbel_noise
from cadenza.kernels.sampling import SettingsArray, native, sample, sample_reference
from tests.kernels.conftest import randn
from tests.kernels.on_triton.conftest import DEVICE
from tests.kernels.sampling import definition, settings

VOCABULARY = 1500  # a piece and a part of one
CLOSE = 1e-5  # scores, or shares of a sum, that differ by less may be told apart otherwise


def drawn(
    logits: Tensor, rows: SettingsArray, shaped: dict[int, Tensor] | None = None
) -> list[int]:
    on_device = {row: values.to(DEVICE) for row, values in (shaped or {}).items()}
    return sample(logits.to(DEVICE), rows, on_device).tolist()


def random_settings(count: int, seed: int, filtered: float = 0.4) -> SettingsArray:
    """Greedy rows, rows with a temperature alone, and all mixtures of filters.

    filtered: the share of rows that has each of them.
    """
    random = np.random.default_rng(seed)

    def some(values: np.ndarray, off: float, share: float) -> list[float]:
        return np.where(random.random(count) < share, values, off).tolist()

    return settings(
        seed=random.integers(0, 2**63, count).tolist(),
        position=random.integers(0, 2**32, count).tolist(),
        choice=random.integers(0, 8, count).tolist(),
        temperature=some(random.uniform(0.1, 2.0, count), 0.0, 0.9),
        top_k=some(random.integers(1, 200, count), 0, filtered),
        top_p=some(random.uniform(0.05, 1.0, count), 1.0, filtered),
        min_p=some(random.uniform(0.0, 0.3, count), 0.0, filtered),
    )


@pytest.mark.extra
def test_tokens_are_those_of_the_reference() -> None:
    """The largest seed and position too, whose bits are signs of what the kernel is given."""
    rows = random_settings(12, seed=1)
    rows["seed"][0], rows["position"][0], rows["temperature"][0] = 2**64 - 1, 2**32 - 1, 1.0
    logits = 4 * randn(12, VOCABULARY, seed=2)

    assert drawn(logits, rows) == sample_reference(logits, rows, {}).tolist()


@pytest.mark.parametrize("size", [1, 5, 1025])
def test_vocabularies_of_any_size(size: int) -> None:
    rows = settings(temperature=[0.0, 1.0, 1.0], top_k=[0, 0, 3], top_p=[1.0, 1.0, 0.9], seed=7)
    logits = randn(3, size, seed=size)

    assert drawn(logits, rows) == sample_reference(logits, rows, {}).tolist()


def test_of_equal_logits_the_lowest_ids_are_kept() -> None:
    """Ties at the cut of top-k, and of top-p, over two pieces."""
    logits = torch.zeros(8, VOCABULARY)
    logits[:, 1020:1030] = 5.0
    logits[4:, 1040] = 9.0
    rows = settings(
        temperature=1.0,
        seed=list(range(8)),
        top_k=[3, 3, 0, 0, 4, 4, 50, 50],
        top_p=[1.0, 1.0, 0.2, 0.2, 0.99, 0.99, 0.985, 0.985],
    )

    found = drawn(logits, rows)

    assert found == sample_reference(logits, rows, {}).tolist()
    assert set(found[:2]) <= {1020, 1021, 1022}
    assert max(found[2:4]) < 1030
    assert drawn(logits[:1], settings(temperature=0.0)) == [1020]


@pytest.mark.filterwarnings("ignore:invalid value")  # NumPy's, of rows that fail
def test_failed_rows_fail_alone_and_shaped_ones_are_drawn_from_what_they_became() -> None:
    logits = randn(8, 40)
    logits[1, 3] = math.nan
    logits[2, 3] = math.inf
    logits[3] = -math.inf
    logits[4, 3] = math.nan  # shaping cannot heal it
    shaped = {4: torch.zeros(40), 5: torch.full((40,), -math.inf), 6: logits[6].clone()}
    shaped[6][:39] = -math.inf
    rows = settings(temperature=[1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0], top_k=5)

    found = drawn(logits, rows, shaped)

    assert found == sample_reference(logits, rows, shaped).tolist()
    assert found[1:7] == [-1, -1, -1, -1, -1, 39]


def test_a_row_of_almost_nothing_is_drawn_from_what_is_left() -> None:
    """More tokens asked for than are possible: the impossible ones never win."""
    logits = torch.full((2, 50), -math.inf)
    logits[:, [7, 30]] = torch.tensor([0.0, -200.0])
    rows = settings(temperature=[1.0, 0.5], top_k=[10, 0], top_p=[0.999, 0.5])

    assert drawn(logits, rows) == [7, 7]


@pytest.mark.extra
def test_a_rows_token_does_not_depend_on_company_or_strides() -> None:
    rows, wide = random_settings(6, seed=3), randn(6, VOCABULARY + 9)
    logits = wide[:, :VOCABULARY]

    together = drawn(logits, rows)

    assert [drawn(logits[i : i + 1], rows[i : i + 1])[0] for i in range(6)] == together


@pytest.mark.extra
def test_noise_is_the_reference_noise() -> None:
    """Rows of one possible draw each would not show it: the winner's margin does."""
    rows = settings(temperature=1.0, seed=[5, 6], position=[1, 2], choice=[0, 1])
    seeds, positions, choices = (torch.tensor(pair) for pair in ([5, 6], [1, 2], [0, 1]))
    noise = gumbel_noise(seeds, positions, choices, VOCABULARY)
    # all scores alike but for 2e-5 more of one token
    for token in (0, 3, 1023, 1024, 1499):
        logits = -noise
        logits[:, token] += 2e-5
        assert drawn(logits, rows) == [token, token]


def test_misfits_are_refused() -> None:
    with pytest.raises(ValueError, match="logits are"):
        drawn(torch.zeros(2, 8, dtype=torch.float16), settings(temperature=[0.0, 0.0]))
    with pytest.raises(ValueError, match="rows of settings"):
        drawn(torch.zeros(2, 8), settings(temperature=[0.0]))


@pytest.mark.extra
@pytest.mark.timeout(0)
def test_random_rows_draw_what_the_cpu_draws() -> None:
    """Any row that differs has two scores, or a sum and top-p, closer than 1e-5.

    As many hundreds of rows as SAMPLED_ROWS has; 10,000 take the interpreter 12 minutes of a core.
    """
    count, differing = int(os.environ.get("SAMPLED_ROWS", "100")), 0
    for start in range(0, count, 100):
        rows = random_settings(100, seed=100 + start, filtered=0.15)
        logits = 4 * randn(100, 512, seed=start)
        expected = native.sample(logits, rows, {}).tolist()
        for row, (found, wanted) in enumerate(zip(drawn(logits, rows), expected, strict=True)):
            if found != wanted:
                differing += 1
                assert found in near_draws(logits[row], rows[row]), (start, row, found, wanted)
    print(f"{differing} of {count} rows differ, all by margins under {CLOSE}")  # noqa: T201


def near_draws(logits: Tensor, row: SettingsArray) -> set[int]:
    """What the row may draw where scores, or sums, that are closer than `CLOSE` count as equal."""
    top_p = float(row["top_p"])
    near = [top_p] if top_p >= 1.0 else [top_p * share for share in (1 - CLOSE, 1, 1 + CLOSE)]
    found: set[int] = set()
    for share in near:
        best = definition(logits, row, share)
        found.add(best.token)
        if best.margin < CLOSE:
            without = logits.clone()
            without[best.token] = -math.inf
            found.add(definition(without, row, share).token)
    return found
