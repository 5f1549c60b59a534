"""Choosing tokens: what the filters keep, what the noise draws, and what stands alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import transformers

from cadenza.engine.sampler import Sampled, Sampler
from cadenza.kernels.philox import gumbel_noise
from cadenza.scheduler.plan import Seated
from cadenza.wire.messages import Sampling
from tests.engine.conftest import sampled

CPU = torch.device("cpu")
VOCAB = 8
# probabilities 0.5, 0.25, 0.125, ...; the last two are equal
LOGITS = torch.log(torch.tensor([1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 128]))
INF = float("inf")
NAN = float("nan")


def seated(seat: int, tokens: Sequence[int] = (0,), prompt_tokens: int = 1) -> Seated:
    return Seated(seat, 0, np.array(tokens, dtype=np.int32), prompt_tokens)


def sample(
    logits: torch.Tensor,
    settings: list[Sampling],
    positions: list[int] | None = None,
    choices: list[int] | None = None,
) -> Sampled:
    """Sample rows [rows, vocab] with row i in seat i."""
    sampler = Sampler(len(settings), logits.shape[1], CPU)
    for seat, sampling in enumerate(settings):
        sampler.seat(seated(seat), sampling, choices[seat] if choices else 0)
    return sampled(
        sampler,
        logits,
        np.arange(len(settings), dtype=np.int32),
        np.array(positions or [0] * len(settings), dtype=np.int32),
    )


def draws(logits: torch.Tensor, count: int, **settings: float) -> list[int]:
    """Tokens drawn from one row of logits under `count` seeds."""
    rows = logits.expand(count, -1)
    seeds = [Sampling(**{"seed": seed, **settings}) for seed in range(count)]
    return sample(rows, seeds).tokens.tolist()


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 5e-324, 9e-6])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    assert set(draws(LOGITS, 20, temperature=temperature, top_k=3, top_p=0.1)) == {0}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_huge_logits_do_not_overflow(temperature: float) -> None:
    logits = torch.tensor([-3e38, 3e38, 0.0, -INF])

    assert set(draws(logits, 5, temperature=temperature)) == {1}
    assert set(draws(logits, 5, temperature=2e-5, top_p=0.9)) == {1}


def test_the_lowest_id_wins_a_tie() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0, 2.0]])

    assert sample(logits, [Sampling(temperature=0.0)]).tokens.tolist() == [1]


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({}, range(8)),
        ({"top_k": 1}, [0]),
        ({"top_k": 3}, range(3)),
        ({"top_k": 7}, range(7)),  # of the two equal ones the lower id
        ({"top_k": 8}, range(8)),
        ({"top_k": 1000}, range(8)),
        ({"top_p": 0.0}, [0]),
        ({"top_p": 1e-9}, [0]),
        ({"top_p": 0.5}, [0]),
        ({"top_p": 0.51}, range(2)),
        ({"top_p": 0.9}, range(4)),
        ({"top_p": 1.0}, range(8)),
        ({"min_p": 1.0}, [0]),
        ({"min_p": 0.24}, range(3)),
        ({"min_p": 0.26}, range(2)),
        ({"top_k": 3, "top_p": 0.6}, range(2)),  # of the top three the first has 4/7
        ({"top_k": 2, "top_p": 0.6}, [0]),  # of the top two it has 2/3
        ({"top_p": 0.9, "min_p": 0.2}, range(3)),
        ({"top_k": 2, "min_p": 0.01}, range(2)),
    ],
)
def test_filters_keep_what_they_say(filters: dict[str, float], kept: list[int]) -> None:
    # at this temperature the rarest token is drawn about once in 50
    flat = LOGITS * 2.0
    found = draws(flat, 400, temperature=2.0, **filters)

    if len(list(kept)) <= 5:
        assert set(found) == set(kept)
    else:
        assert set(found) <= set(kept)
        assert len(set(found)) >= 6


def test_top_k_of_equal_logits_keeps_the_lowest_ids() -> None:
    assert set(draws(torch.zeros(50), 200, top_k=3)) == {0, 1, 2}


def test_top_p_beyond_the_first_candidates_sorts_the_whole_vocabulary() -> None:
    found = draws(torch.zeros(20_000), 100, top_p=0.5)

    assert max(found) < 10_000
    assert max(found) > 4096  # more than the candidates that are tried first


@pytest.mark.parametrize(
    ("settings", "probabilities"),
    [
        ({"temperature": 1.0}, LOGITS.exp()),
        ({"temperature": 2.0}, torch.softmax(LOGITS / 2, 0)),
        ({"temperature": 1.0, "top_k": 3}, torch.tensor([4 / 7, 2 / 7, 1 / 7, 0, 0, 0, 0, 0])),
        ({"temperature": 1.0, "top_p": 0.6}, torch.tensor([2 / 3, 1 / 3, 0, 0, 0, 0, 0, 0])),
    ],
)
def test_tokens_are_drawn_by_their_probability(
    settings: dict[str, float], probabilities: torch.Tensor
) -> None:
    count = 4000
    observed = np.bincount(draws(LOGITS, count, **settings), minlength=VOCAB)

    kept = probabilities.numpy() > 0
    expected = count * probabilities.numpy()[kept]
    chi_square = float(((observed[kept] - expected) ** 2 / expected).sum())
    # the 99.9 % point of chi-square: 24.3 with 7 degrees of freedom, less with fewer
    assert observed[~kept].sum() == 0
    assert chi_square < 24.3


def test_positions_draw_independently() -> None:
    """Under one seed, the tokens of neighbouring positions are not related."""
    count = 4000
    settings = [Sampling(seed=5)] * count
    tokens = sample(torch.zeros(count, 2), settings, positions=list(range(count))).tokens

    pairs = np.bincount(2 * tokens[:-1] + tokens[1:], minlength=4)
    assert float(((pairs - count / 4) ** 2 / (count / 4)).sum()) < 16.3  # 99.9 %, 3 degrees


def test_a_token_is_the_largest_of_logit_plus_noise() -> None:
    """Noise is named by (seed, position, choice, token id), so anyone can repeat a draw."""
    logits = torch.randn(1, 100, generator=torch.Generator().manual_seed(0))
    sampling = Sampling(temperature=0.7, seed=(1 << 64) - 2)

    token = sample(logits, [sampling], positions=[17], choices=[3]).tokens[0]

    noise = gumbel_noise(torch.tensor([-2]), torch.tensor([17]), torch.tensor([3]), 100)
    assert token == int(((logits[0] - logits.max()) / 0.7 + noise[0]).argmax())


def test_filters_agree_with_transformers() -> None:
    """The token is the largest of logit plus noise among those that its warpers leave."""
    chance = np.random.default_rng(3)
    size = 700  # more than the candidates that a top-p filter tries first
    for seed in range(150):
        logits = torch.from_numpy(chance.normal(0, chance.choice([0.1, 2.0, 6.0]), size)).float()
        sampling = Sampling(
            temperature=float(chance.choice([0.3, 1.0, 1.7])),
            top_k=int(chance.choice([0, 1, 5, 300])),
            top_p=float(chance.choice([0.2, 0.9, 0.999, 1.0])),
            min_p=float(chance.choice([0.0, 0.02, 0.5])),
            seed=seed,
        )
        scores = transformers.TemperatureLogitsWarper(sampling.temperature)(None, logits[None])
        if sampling.top_k:
            scores = transformers.TopKLogitsWarper(sampling.top_k)(None, scores)
        if sampling.top_p < 1:
            scores = transformers.TopPLogitsWarper(sampling.top_p)(None, scores)
        if sampling.min_p:
            scores = transformers.MinPLogitsWarper(sampling.min_p)(None, scores)
        zero = torch.zeros(1, dtype=torch.int64)
        noise = gumbel_noise(torch.tensor([seed]), zero, zero, size)

        token = sample(logits[None], [sampling]).tokens[0]

        assert token == int((scores + noise).argmax()), sampling


def test_seed_position_and_choice_each_change_the_draws() -> None:
    logits, count = torch.zeros(40, 1000), 40
    base = sample(logits, [Sampling(seed=1)] * count, list(range(count)), [0] * count)

    for seed, offset, choice in ((2, 0, 0), (1, 1000, 0), (1, 0, 1), (1 + (1 << 32), 0, 0)):
        other = sample(
            logits,
            [Sampling(seed=seed)] * count,
            list(range(offset, offset + count)),
            [choice] * count,
        )
        assert (other.tokens != base.tokens).sum() > 30


MIXED = [
    Sampling(temperature=0.0),
    Sampling(temperature=0.9, seed=1),
    Sampling(temperature=1.3, seed=2, top_k=40),
    Sampling(temperature=0.8, seed=3, top_p=0.9),
    Sampling(temperature=1.0, seed=4, min_p=0.05),
    Sampling(temperature=1.5, seed=5, top_k=500, top_p=0.95, min_p=0.01),
    Sampling(temperature=3.0, seed=6, top_p=0.999),
    Sampling(temperature=0.0, logprobs=5),
    Sampling(temperature=0.0, repetition_penalty=3.0, logprobs=1),
    Sampling(temperature=0.9, seed=7, top_p=0.9, presence_penalty=1.0, frequency_penalty=-0.5),
]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_draws_the_same_in_any_batch(
    threads: int, set_threads: Callable[[int], None]
) -> None:
    logits = torch.randn(len(MIXED), 49_152, generator=torch.Generator().manual_seed(1)) * 3
    positions = list(range(100, 100 + len(MIXED)))
    set_threads(2)
    together = sample(logits, MIXED, positions)
    set_threads(threads)

    for row, sampling in enumerate(MIXED):
        alone = sample(logits[row : row + 1], [sampling], positions[row : row + 1])
        assert alone.tokens[0] == together.tokens[row]
        if row in together.logprobs:
            mine, theirs = alone.logprobs[0], together.logprobs[row]
            assert mine.sampled == theirs.sampled
            assert np.array_equal(mine.top_ids, theirs.top_ids)
            assert np.array_equal(mine.top_logprobs, theirs.top_logprobs)


@pytest.mark.parametrize("bad", [[0.0, NAN], [INF, 0.0], [NAN, INF], [-INF, -INF], [NAN, -INF]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_fails_alone(bad: list[float], temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=1, logprobs=1)
    good = torch.tensor([3.0, 5.0])
    alone = sample(good[None], [sampling])

    found = sample(torch.stack([good, torch.tensor(bad), good]), [sampling] * 3)

    assert found.failed.tolist() == [False, True, False]
    assert found.tokens.tolist() == [alone.tokens[0], -1, alone.tokens[0]]
    assert sorted(found.logprobs) == [0, 2]


@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_p": 0.99}, {"min_p": 0.001}])
def test_a_masked_token_is_never_drawn(settings: dict[str, float]) -> None:
    logits = torch.tensor([-INF, 1.0, -INF, 1.0])

    assert set(draws(logits, 100, **settings)) == {1, 3}


def test_logprobs_come_from_raw_logits() -> None:
    """Before temperature and filters; best first; only where asked for."""
    settings = [
        Sampling(temperature=0.2, top_k=1, logprobs=3),
        Sampling(temperature=0.0, logprobs=0),
        Sampling(temperature=0.0),
        Sampling(temperature=0.0, logprobs=100),
    ]

    logprobs = sample(LOGITS.expand(4, -1) + 7.0, settings).logprobs

    assert sorted(logprobs) == [0, 1, 3]
    assert logprobs[0].sampled == pytest.approx(math.log(1 / 2), abs=1e-6)
    assert logprobs[0].top_ids.tolist() == [0, 1, 2]
    assert logprobs[0].top_logprobs.tolist() == pytest.approx(
        [math.log(p) for p in (1 / 2, 1 / 4, 1 / 8)], abs=1e-6
    )
    assert (logprobs[0].top_ids.dtype, logprobs[0].top_logprobs.dtype) == (np.int32, np.float32)
    assert len(logprobs[1].top_ids) == 0
    assert logprobs[3].top_ids.tolist() == list(range(VOCAB))  # ties by id


def test_the_logits_are_left_as_they_were() -> None:
    logits = torch.randn(len(MIXED), 600, generator=torch.Generator().manual_seed(2))
    before = logits.clone()

    sample(logits, MIXED)

    assert torch.equal(logits, before)


def test_a_new_request_in_a_seat_brings_its_own_settings() -> None:
    sampler = Sampler(1, VOCAB, CPU)
    seat, position = np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.int32)
    sampler.seat(seated(0), Sampling(temperature=0.0, logprobs=1), 0)
    assert sampled(sampler, LOGITS[None], seat, position).logprobs

    sampler.seat(seated(0), Sampling(temperature=0.0), 0)

    assert not sampled(sampler, LOGITS[None], seat, position).logprobs
