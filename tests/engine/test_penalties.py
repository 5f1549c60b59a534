"""Penalties, against plain loops over the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import transformers

from cadenza.engine.penalties import Penalties, penalties_of
from cadenza.engine.sampler import Sampler
from cadenza.kernels.philox import gumbel_noise
from cadenza.scheduler.plan import Seated
from cadenza.wire.messages import Sampling
from tests.engine.conftest import sampled

CPU = torch.device("cpu")
VOCAB = 50_000  # more than one thread's share
SETTINGS = [
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6},
    {"frequency_penalty": 0.7},
    {"frequency_penalty": -1.1},
    {"presence_penalty": 1.3},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": -0.9},
]
CHANCE = np.random.default_rng(0)
TEXT = CHANCE.integers(0, 60, 90).tolist()  # most tokens more than once
PROMPT_TOKENS = 40


def seated(tokens: Sequence[int], prompt_tokens: int = PROMPT_TOKENS, seat: int = 0) -> Seated:
    return Seated(seat, 0, np.array(tokens, dtype=np.int32), prompt_tokens)


def make(settings: dict[str, float], tokens: Sequence[int] = TEXT, size: int = VOCAB) -> Penalties:
    found = penalties_of(Sampling(**settings), seated(tokens), size, CPU)
    assert found is not None
    return found


def random_logits(rows: int = 1, seed: int = 0) -> torch.Tensor:
    """[rows, VOCAB], of both signs, some of them masked; the tokens of the text come out on top."""
    logits = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 4
    logits[:, :60] += 10.0 * torch.sign(logits[:, :60])
    logits[:, 7] = 0.0
    logits[:, 11] = -float("inf")
    return logits


def reference(
    logits: torch.Tensor, text: Sequence[int], repetition=1.0, frequency=0.0, presence=0.0
) -> torch.Tensor:
    """One row, token by token, each operation rounded to fp32."""
    values = logits.numpy().copy()
    repetition, frequency, presence = map(np.float32, (repetition, frequency, presence))
    for token in set(text):
        value = values[token]
        values[token] = value / repetition if value > 0 else value * repetition
    output = list(text[PROMPT_TOKENS:])
    for token in set(output):
        values[token] = values[token] - np.float32(output.count(token)) * frequency
        values[token] = values[token] - presence
    return torch.from_numpy(values)


def plain(settings: dict[str, float]) -> dict[str, float]:
    return {name.removesuffix("_penalty"): value for name, value in settings.items()}


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_penalties_equal_the_plain_loops(settings: dict[str, float]) -> None:
    logits = random_logits()[0]

    found = make(settings).applied(logits)

    assert torch.equal(found, reference(logits, TEXT, **plain(settings)))
    assert not torch.equal(found, logits)


def test_repetition_agrees_with_transformers() -> None:
    logits = random_logits()
    processor = transformers.RepetitionPenaltyLogitsProcessor(1.7)

    found = make({"repetition_penalty": 1.7}).applied(logits[0])

    assert torch.equal(found, processor(torch.tensor([TEXT]), logits)[0])


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_row_seated_again_has_the_state_that_it_left(settings: dict[str, float]) -> None:
    """Whether its output came token by token or with the seat."""
    logits = random_logits()[0]
    grown = make(settings, TEXT[:PROMPT_TOKENS])
    for end in range(PROMPT_TOKENS, len(TEXT)):
        again = make(settings, TEXT[:end])
        assert torch.equal(grown.applied(logits), again.applied(logits))
        grown.add(TEXT[end])

    assert torch.equal(grown.applied(logits), make(settings).applied(logits))


def test_the_tokens_are_not_kept() -> None:
    tokens = np.array(TEXT, dtype=np.int32)
    settings = Sampling(repetition_penalty=2.0, presence_penalty=1.0)
    penalties = Penalties(settings, Seated(0, 0, tokens, PROMPT_TOKENS), VOCAB, CPU)
    before = penalties.applied(random_logits()[0])

    tokens[:] = 55

    assert torch.equal(penalties.applied(random_logits()[0]), before)


def test_settings_without_penalties_have_none() -> None:
    assert penalties_of(Sampling(temperature=0.3, top_k=4), seated(TEXT), VOCAB, CPU) is None


def sampler_of(*settings: Sampling) -> Sampler:
    sampler = Sampler(len(settings), VOCAB, CPU)
    for seat, sampling in enumerate(settings):
        sampler.seat(seated(TEXT, seat=seat), sampling, 0)
    return sampler


def sample(sampler: Sampler, logits: torch.Tensor, seats: Sequence[int], position: int = 90):
    positions = np.full(len(seats), position, dtype=np.int32)
    return sampled(sampler, logits, np.array(seats, dtype=np.int32), positions)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_greedy_takes_the_best_after_penalties_and_tells_raw_logprobs(
    settings: dict[str, float],
) -> None:
    logits = random_logits()
    untouched = logits.clone()

    found = sample(sampler_of(Sampling(temperature=0.0, logprobs=2, **settings)), logits, [0])

    best = reference(logits[0], TEXT, **plain(settings)).argmax()
    assert found.tokens[0] == best
    raw = torch.log_softmax(logits[0], 0)
    assert found.logprobs[0].sampled == pytest.approx(float(raw[best]), abs=1e-4)
    assert found.logprobs[0].top_ids.tolist() == raw.topk(2).indices.tolist()
    assert torch.equal(logits, untouched)


def test_each_sampled_token_counts_for_the_next() -> None:
    """With a strong presence penalty, greedy walks down the logits and never comes back."""
    logits = random_logits()
    sampler = Sampler(1, VOCAB, CPU)
    sampler.seat(seated([3], 1), Sampling(temperature=0.0, presence_penalty=1000.0), 0)

    tokens = [int(sample(sampler, logits, [0]).tokens[0]) for _ in range(6)]

    assert tokens == logits[0].topk(6).indices.tolist()


def test_a_new_request_in_a_seat_brings_its_own_text_or_none() -> None:
    logits = random_logits()
    first, second = logits[0].topk(2).indices.tolist()
    sampler = Sampler(1, VOCAB, CPU)
    penalised = Sampling(temperature=0.0, presence_penalty=1000.0)
    sampler.seat(seated([3], 1), penalised, 0)
    assert sample(sampler, logits, [0]).tokens[0] == first

    sampler.seat(seated([3], 1), penalised, 0)
    assert sample(sampler, logits, [0]).tokens[0] == first
    assert sample(sampler, logits, [0]).tokens[0] == second
    sampler.seat(seated([3], 1), Sampling(temperature=0.0), 0)
    assert sample(sampler, logits, [0]).tokens[0] == first


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_penalised_row_draws_the_same_in_any_batch(
    threads: int, set_threads: Callable[[int], None]
) -> None:
    settings = [Sampling(temperature=0.9, seed=seed, **SETTINGS[5]) for seed in range(3)]
    settings += [Sampling(temperature=0.9, seed=9), Sampling(temperature=0.0)]
    logits = random_logits(5, seed=1)
    set_threads(2)
    sampler = sampler_of(*settings)
    together = [sample(sampler, logits, range(5), 90 + step).tokens for step in range(3)]
    set_threads(threads)

    for seat in range(5):
        alone = sampler_of(*settings)
        for step in range(3):
            found = sample(alone, logits[seat : seat + 1], [seat], 90 + step)
            assert found.tokens[0] == together[step][seat]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_draws_are_from_the_logits_after_penalties(settings: dict[str, float]) -> None:
    logits = random_logits()
    sampler = sampler_of(Sampling(temperature=0.7, seed=6, **settings))

    token = sample(sampler, logits, [0], position=17).tokens[0]

    noise = gumbel_noise(torch.tensor([6]), torch.tensor([17]), torch.tensor([0]), VOCAB)[0]
    values = reference(logits[0], TEXT, **plain(settings))
    assert token == int(((values - values.max()) / 0.7 + noise).argmax())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_penalised_row_that_is_not_finite_fails_and_counts_nothing(bad: float) -> None:
    logits = random_logits()
    best = int(logits.argmax())
    sampler = Sampler(1, VOCAB, CPU)
    sampler.seat(seated([3], 1), Sampling(temperature=0.0, presence_penalty=1000.0), 0)
    broken = logits.clone()
    broken[0, best] = bad

    found = sample(sampler, broken, [0])

    assert (found.tokens[0], found.failed[0]) == (-1, True)
    assert sample(sampler, logits, [0]).tokens[0] == best
