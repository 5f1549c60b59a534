"""Sampling by the C++ kernels, of every level that this machine has, and by the reference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from cadenza.kernels.sampling import (
    LEAST_TEMPERATURE,
    SETTINGS,
    SettingsArray,
    native,
    sample,
    sample_reference,
)
from tests.kernels.conftest import randn
from tests.kernels.sampling import LEVELS, definition, noise, settings, tokens_by_definition

INF, NAN = math.inf, math.nan
VOCAB = 49_152
# one token, less than a register, blocks of 256 with and without a remainder, and the demo model's
SIZES = (1, 2, 7, 16, 17, 255, 256, 257, 1000, 4100, VOCAB)

needs_library = pytest.mark.skipif(not native.levels(), reason="there was no compiler")

Sample = Callable[[Tensor, SettingsArray], np.ndarray]


def kinds() -> dict[str, Sample]:
    """Everybody who samples, by name."""

    def at(level: str) -> Sample:
        return lambda logits, rows: native.sample(logits, rows, {}, level)

    found = {level: at(level) for level in native.levels()}
    return {"reference": lambda logits, rows: sample_reference(logits, rows, {}), **found}


KINDS = kinds()
each_kind = pytest.mark.parametrize("kind", KINDS)
each_level = pytest.mark.parametrize("level", LEVELS)


def many_settings(seed: int) -> SettingsArray:
    """A row for each combination of filters and temperatures."""
    combinations = itertools.product(
        (0.3, 1.0, 5.0), (0, 1, 5, 300, 5000), (1.0, 0.95, 0.3, 1e-6, 1 - 1e-12), (0.0, 0.05, 1.0)
    )
    temperature, top_k, top_p, min_p = (list(column) for column in zip(*combinations, strict=True))
    rows = len(top_k)
    return settings(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=[seed + row * 0x9E37_79B9_7F4A_7C15 % 2**64 for row in range(rows)],
        position=list(range(rows)),
        choice=[row % 5 for row in range(rows)],
    )


@needs_library
@pytest.mark.parametrize("size", SIZES)
def test_every_level_draws_by_the_definition(size: int):
    rows = many_settings(size)
    if size == VOCAB:
        rows = rows[::7]  # sorting takes long
    logits = (
        randn(len(rows), size, seed=size)
        * torch.tensor([0.1, 1.0, 4.0]).repeat(len(rows))[: len(rows), None]
    )

    tokens = {level: native.sample(logits, rows, {}, level).tolist() for level in LEVELS}

    for row, setting in enumerate(rows):
        assert tokens["portable"][row] in tokens_by_definition(logits[row], setting), setting
    for level in LEVELS:
        assert tokens[level] == tokens["portable"], level


@needs_library
def test_the_reference_draws_the_same_where_rounding_does_not_decide():
    rows = many_settings(3)
    logits = randn(len(rows), 3000, seed=2) * 3
    expected = sample_reference(logits, rows, {})

    tokens = sample(logits, rows, {})

    different = np.flatnonzero(tokens != expected)
    for row in different:
        assert definition(logits[row], rows[row], float(rows[row]["top_p"])).margin < 1e-5
    assert len(different) <= 2


@each_kind
def test_greedy_takes_the_first_of_the_largest(kind: str):
    for size in SIZES:
        for place in {0, size // 3, size // 2, size - 1}:
            logits = torch.zeros(2, size) - 3
            logits[0, place:] = -1.0
            logits[1, place] = 1e-40
            assert KINDS[kind](logits, settings(temperature=[0.0, 0.0])).tolist() == [place, place]


@each_kind
@pytest.mark.parametrize("size", [1, 5, 64, 300, 1000])
@pytest.mark.parametrize(
    "row", [{"temperature": 0.0}, {}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}]
)
def test_a_row_fails_where_a_logit_is_not_finite_or_none_is_left(
    kind: str, size: int, row: dict[str, float]
):
    good = randn(size)
    for place in {0, size // 2, size - 1}:
        for bad in (NAN, INF, -NAN):
            logits = good.clone()
            logits[place] = bad
            rows = torch.stack([good, logits, torch.full((size,), -INF), good])
            if size > 2:
                rows[2, size // 3] = bad

            tokens = KINDS[kind](rows, np.repeat(settings(seed=5, **row), 4))

            assert tokens.tolist() == [tokens[0], -1, -1, tokens[0]]
            assert tokens[0] >= 0


@each_kind
@pytest.mark.parametrize(
    "filters",
    [{}, {"top_k": 3}, {"top_k": 250}, {"top_p": 0.99}, {"top_p": 1 - 1e-15}, {"min_p": 1e-6}],
)
def test_what_is_masked_is_never_drawn(kind: str, filters: dict[str, float]):
    logits = torch.full((300,), -INF)
    logits[[7, 299]] = 1.0
    rows = settings(seed=list(range(50)), **filters)

    assert set(KINDS[kind](logits.expand(50, -1), rows).tolist()) == {7, 299}


@each_kind
@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_p": 0.5}, {0, 1}),
        ({"top_p": 0.501}, {0, 1, 2}),
        ({"top_p": 1e-300}, {0}),
        ({"min_p": 1.0}, {0, 1, 2, 3}),
        ({"min_p": 2.0}, {0, 1, 2, 3}),
        ({"top_k": 1000}, {0, 1, 2, 3}),
        ({"top_k": 2, "top_p": 0.5}, {0}),
    ],
)
def test_of_equal_logits_the_lowest_ids_are_kept(
    kind: str, filters: dict[str, float], kept: set[int]
):
    rows = settings(seed=list(range(60)), **filters)

    assert set(KINDS[kind](torch.zeros(60, 4), rows).tolist()) == kept


@each_kind
@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.999}, {"min_p": 0.001}])
@pytest.mark.parametrize("temperature", [LEAST_TEMPERATURE, 1.0, 1e4])
def test_huge_logits_do_not_overflow(kind: str, temperature: float, filters: dict[str, float]):
    logits = torch.tensor([[-3e38, 3e38, 0.0, -INF, 3e38]])

    assert KINDS[kind](logits, settings(temperature=temperature, seed=1, **filters))[0] in (1, 4)


@each_kind
def test_at_the_least_temperature_only_the_nearest_logits_are_drawn(kind: str):
    logits = torch.tensor([1.0, 1.0 + 2e-7, 1.0 - 1e-3, 0.0])
    rows = settings(temperature=LEAST_TEMPERATURE, seed=list(range(40)))

    assert set(KINDS[kind](logits.expand(40, -1), rows).tolist()) == {0, 1}


@each_kind
@pytest.mark.parametrize("direction", [1, -1])
def test_logits_that_rise_or_fall_all_along_are_drawn_from(kind: str, direction: int):
    """Then many tokens are the best so far."""
    for slope in (1e-4, 1e-2, 1.0):
        logits = direction * slope * torch.arange(4000.0)
        rows = settings(seed=[1, 2, 3])
        tokens = KINDS[kind](logits.expand(3, -1), rows)
        if native.levels():
            expected = [definition(logits, row, 1.0).token for row in rows]
            assert tokens.tolist() == expected


@needs_library
@each_level
def test_a_row_whose_scores_are_nearly_all_equal_is_drawn_from_exactly(level: str):
    """As if somebody had chosen the logits by the noise: all may win until the last is seen."""
    for name in range(5):
        setting = settings(seed=name, temperature=0.7)[0]
        logits = -noise(setting, 2000) * np.float32(0.7)

        token = native.sample(logits[None], setting[None], {}, level)[0]

        assert token == definition(logits, setting, 1.0).token


@needs_library
@each_level
@pytest.mark.parametrize("filters", [{}, {"min_p": 1e-12}])
def test_the_most_and_the_least_noise_count(level: str, filters: dict[str, float]):
    """Under these seeds token 3 has the word 0, token 502 the word 2, token 205 the largest."""
    loudest, loud, quiet = settings(seed=[1343428, 3804336, 167459], **filters)
    assert noise(loudest, 4)[3] > 22.87
    assert noise(quiet, 206)[205] < -2.81
    for setting, token in ((loudest, 3), (loud, 502)):
        numbers = noise(setting, 600)
        for size in (token + 1, 600):
            logits = torch.full((2, size), -27.0)  # all are kept
            logits[:, 0] = 0.0
            needed = float(numbers[0] - numbers[token])
            logits[:, token] = needed + torch.tensor([1e-3, -1e-3])
            found = native.sample(logits, np.repeat(setting, 2), {}, level)
            assert found.tolist() == [token, 0]
    logits = torch.full((1, 500), -26.0)
    logits[0, 205] = 0.0
    assert native.sample(logits, quiet[None], {}, level)[0] == 205


@needs_library
@pytest.mark.parametrize("filters", [{}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.01}])
@pytest.mark.parametrize("level", ["reference", *LEVELS])
def test_tokens_are_drawn_by_their_probability(level: str, filters: dict[str, float]):
    """Chi-square of draws of 600 tokens in 16 bins under fixed seeds."""
    count, size = 800 if level == "reference" else 3000, 600
    logits = randn(size, seed=4) * 2
    rows = settings(temperature=1.3, seed=list(range(count)), position=9, **filters)
    tokens = KINDS[level](logits.expand(count, -1), np.resize(rows, count))
    scaled = logits.double() / 1.3
    p = torch.softmax(scaled, 0)
    if filters:
        order = scaled.argsort(descending=True, stable=True)
        kept = torch.zeros(size, dtype=torch.bool)
        kept[order[: filters.get("top_k", size)]] = True
        before = p[order].cumsum(0) - p[order]
        kept[order[before >= filters.get("top_p", 2.0)]] = False
        kept &= p >= filters.get("min_p", 0.0) * p.max()
        p = torch.where(kept, p, 0.0)
        p /= p.sum()
        assert kept[torch.from_numpy(tokens).long()].all()
    # bins of about equal probability, by falling probability of their tokens
    order = p.argsort(descending=True, stable=True)
    bins = torch.empty(size, dtype=torch.int64)
    bins[order] = (p[order].cumsum(0) * 16 - 1e-9).long().clamp(max=15)
    expected = count * torch.zeros(16, dtype=torch.float64).index_add_(0, bins, p).numpy()
    observed = np.bincount(bins.numpy()[tokens], minlength=16)
    used = expected > 0
    # the 99.9 % point of chi-square with 15 degrees of freedom
    assert float(((observed - expected)[used] ** 2 / expected[used]).sum()) < 37.7


@needs_library
@each_level
def test_a_row_draws_the_same_in_any_batch_on_any_thread_at_any_address(level: str, threads: int):
    rows = many_settings(1)[::5]
    logits = randn(len(rows), 2001, seed=9) * 3
    together = native.sample(logits, rows, {}, level)
    moved = torch.zeros(len(rows), 2004)
    moved[:, 3:] = logits

    assert native.sample(moved[:, 3:], rows, {}, level).tolist() == together.tolist()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))
    shuffled = native.sample(logits[order], rows[order.numpy()], {}, level)
    assert shuffled.tolist() == together[order.numpy()].tolist()
    for row in range(0, len(rows), 5):
        alone = native.sample(logits[row : row + 1], rows[row : row + 1], {}, level)
        assert alone[0] == together[row]


@needs_library
def test_memory_in_another_order_gives_the_same():
    rows = many_settings(2)[::9]
    logits = randn(len(rows), 500)
    expected = sample(logits, rows, {}).tolist()

    assert sample(logits.t().contiguous().t(), rows, {}).tolist() == expected
    assert sample(logits.repeat(1, 2)[:, :500], rows, {}).tolist() == expected
    assert sample(logits, np.repeat(rows, 2)[::2], {}).tolist() == expected


@each_kind
def test_a_shaped_row_is_sampled_from_what_stands_in_its_place(kind: str):
    logits = torch.zeros(4, 300)
    logits[:, 5] = 1.0
    logits[3, 7] = NAN
    shaped = {row: torch.full((600,), -INF)[::2] for row in (1, 2, 3)}
    shaped[1][8] = -2.0
    shaped[3][9] = 0.0  # hides what is not finite

    rows = np.repeat(settings(temperature=0.0), 4)
    if kind == "reference":
        tokens = sample_reference(logits, rows, shaped)
    else:
        tokens = native.sample(logits, rows, shaped, kind)

    assert tokens.tolist() == [5, 8, -1, -1]


def test_no_rows_give_no_tokens():
    for size in (3, VOCAB):
        assert sample(torch.empty(0, size), np.zeros(0, dtype=SETTINGS), {}).tolist() == []


def test_without_the_library_the_reference_samples(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native, "_kernels", lambda: None)
    rows = many_settings(1)[::9]
    logits = randn(len(rows), 300)

    assert native.levels() == ()
    assert sample(logits, rows, {}).tolist() == sample_reference(logits, rows, {}).tolist()
    with pytest.raises(RuntimeError, match="not compiled"):
        native.sample(logits, rows, {})


@needs_library
def test_a_library_without_these_kernels_is_as_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native, "library", lambda: SimpleNamespace(functions=object()))

    assert native._kernels.__wrapped__() is None


@needs_library
def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="level is 'sse9', not one of portable"):
        native.sample(torch.zeros(1, 3), settings(), {}, "sse9")
