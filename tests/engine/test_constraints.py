"""Constraints, against plain loops over the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.engine.constraints import Constraints, constraints_of
from cadenza.engine.sampler import Sampler
from cadenza.scheduler.plan import Seated
from cadenza.wire.arrays import pack_ids
from cadenza.wire.messages import Sampling
from tests.engine.conftest import sampled

CPU = torch.device("cpu")
VOCAB = 5_000
PROMPT = [3, 1, 2]  # its end would begin a bad word, and must not
OUTPUT = [5, 1, 1, 2, 9, 1, 2, 4]
INF = float("inf")


def biased(biases: dict[int, float]) -> dict[str, Any]:
    values = np.array(list(biases.values()), dtype="<f4").tobytes()
    return {"bias_ids": pack_ids(biases), "biases": values}


SETTINGS: list[dict[str, Any]] = [
    biased({7: 3.5, 4_999: -100.0, 0: 100.0}),
    {"allowed_ids": pack_ids([2, 4_998, 17])},
    {"bad_words": ((1, 2, 9), (1, 2), (4,), (2, 9), (1, 1, 2, 9, 1, 2, 4, 6))},
    {"min_tokens": 4, "ending_ids": (8, 11)},
    {
        **biased({7: 3.5, 8: 50.0, 4: 60.0}),
        "allowed_ids": pack_ids([7, 8, 4, 2, 9]),
        "bad_words": ((4,), (1, 9)),
        "min_tokens": 3,
        "ending_ids": (8,),
    },
]
IDS = ["bias", "allowed", "bad-words", "min-tokens", "all"]


def seated(output: Sequence[int], seat: int = 0) -> Seated:
    return Seated(seat, 0, np.array([*PROMPT, *output], dtype=np.int32), len(PROMPT))


def make(settings: dict[str, Any], output: Sequence[int] = ()) -> Constraints:
    found = constraints_of(Sampling(**settings), seated(output), VOCAB)
    assert found is not None
    return found


def random_logits(rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 4


def reference(logits: torch.Tensor, settings: dict[str, Any], output: list[int]) -> torch.Tensor:
    """One row, rule by rule."""
    values = logits.numpy().copy()
    ids = np.frombuffer(settings.get("bias_ids", b""), "<i4").tolist()
    biases = np.frombuffer(settings.get("biases", b""), "<f4").tolist()
    for token, bias in zip(ids, biases, strict=True):
        values[token] += np.float32(bias)
    if allowed := np.frombuffer(settings.get("allowed_ids", b""), "<i4").tolist():
        for token in range(VOCAB):
            if token not in allowed:
                values[token] = -INF
    for *start, last in settings.get("bad_words", ()):
        if output[len(output) - len(start) :] == start and len(output) >= len(start):
            values[last] = -INF
    if len(output) < settings.get("min_tokens", 0):
        values[list(settings["ending_ids"])] = -INF
    return torch.from_numpy(values)


@pytest.mark.parametrize("settings", SETTINGS, ids=IDS)
def test_constraints_equal_the_plain_loops_at_every_length(settings: dict[str, Any]) -> None:
    """Whether the output came token by token or with the seat, as after a preemption."""
    logits = random_logits()[0]
    untouched = logits.clone()
    grown = make(settings)
    for end, token in enumerate([*OUTPUT, 0]):
        expected = reference(logits, settings, OUTPUT[:end])
        assert torch.equal(grown.applied(logits), expected)
        assert torch.equal(make(settings, OUTPUT[:end]).applied(logits), expected)
        grown.add(token)

    assert torch.equal(logits, untouched)


def test_what_applies_no_more_costs_no_copy() -> None:
    logits = random_logits()[0]

    assert make(SETTINGS[3], OUTPUT[:4]).applied(logits) is logits
    assert make(SETTINGS[2], [0]).applied(logits) is not logits  # a bad word of one token


def test_a_step_looks_only_at_bad_words_that_may_be_completed() -> None:
    class Watched(tuple[int, ...]):
        def __getitem__(self, index: Any) -> Any:
            looks.append(index)
            return super().__getitem__(index)

        def __iter__(self) -> Any:
            looks.append("all")
            return super().__iter__()

    looks: list[Any] = []
    words = [Watched([1, 2, last]) for last in range(100, 200)]
    constraints = make({"bad_words": (*words, (3, 6, 7), (6, 8), (9,))}, [3])
    looks.clear()
    for token in (6, 2, 3):
        constraints.add(token)
        constraints.applied(torch.zeros(VOCAB))

    assert looks == []
    constraints.add(6)
    assert torch.isneginf(constraints.applied(torch.zeros(VOCAB))).nonzero().flatten().tolist() == [
        7,
        8,
        9,
    ]


def test_settings_without_constraints_have_none() -> None:
    settings = Sampling(temperature=0.3, top_k=4, presence_penalty=1.0)

    assert constraints_of(settings, seated(OUTPUT), VOCAB) is None


def sampler_of(*settings: Sampling) -> Sampler:
    sampler = Sampler(len(settings), VOCAB, CPU)
    for seat, sampling in enumerate(settings):
        sampler.seat(seated([], seat), sampling, 0)
    return sampler


def sample(sampler: Sampler, logits: torch.Tensor, seats: Sequence[int], position: int = 9):
    positions = np.full(len(seats), position, dtype=np.int32)
    return sampled(sampler, logits, np.array(seats, dtype=np.int32), positions)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("filters", [{}, {"top_k": 50}, {"top_p": 0.999999}, {"min_p": 1e-6}])
def test_forbidden_tokens_are_never_drawn(temperature: float, filters: dict[str, float]) -> None:
    """Even where the filters would keep more tokens than are allowed."""
    allowed = [4, 9, 4_000]
    settings = [
        Sampling(temperature=temperature, seed=seed, allowed_ids=pack_ids(allowed), **filters)
        for seed in range(60)
    ]

    tokens = sample(sampler_of(*settings), random_logits(60), range(60)).tokens.tolist()

    assert set(tokens) <= set(allowed)
    assert len(set(tokens)) > 1


def test_an_ending_token_comes_no_sooner_than_it_may() -> None:
    logits = random_logits()
    logits[0, 8] = 90.0
    sampler = sampler_of(Sampling(temperature=0.0, min_tokens=3, ending_ids=(8,)))

    tokens = [int(sample(sampler, logits, [0]).tokens[0]) for _ in range(4)]

    assert [token == 8 for token in tokens] == [False, False, False, True]


def test_biases_come_before_penalties_and_logprobs_before_both() -> None:
    logits = torch.full((1, VOCAB), -5.0)
    logits[0, 2], logits[0, 9] = 3.0, 2.0
    settings = Sampling(
        temperature=0.0, repetition_penalty=4.0, logprobs=1, **biased({2: 5.0, 9: 1.5})
    )

    found = sample(sampler_of(settings), logits, [0])

    # (3 + 5) / 4, as 2 is in the prompt, is below 2 + 1.5; 3 / 4 + 5 would not be
    assert found.tokens.tolist() == [9]
    raw = torch.log_softmax(logits[0], 0)
    assert found.logprobs[0].sampled == pytest.approx(float(raw[9]), abs=1e-5)
    assert found.logprobs[0].top_ids.tolist() == [2]


def test_what_is_not_finite_fails_even_where_it_is_forbidden() -> None:
    for bad in (float("nan"), INF):
        logits = random_logits()
        logits[0, 100] = bad
        settings = Sampling(temperature=0.0, allowed_ids=pack_ids([4]))

        found = sample(sampler_of(settings), logits, [0])

        assert (found.tokens[0], found.failed[0]) == (-1, True)


def test_a_new_request_in_a_seat_has_its_own_constraints_or_none() -> None:
    logits = random_logits()
    best = int(logits.argmax())
    sampler = sampler_of(Sampling(temperature=0.0, allowed_ids=pack_ids([4])))
    assert sample(sampler, logits, [0]).tokens[0] == 4

    sampler.seat(seated([]), Sampling(temperature=0.0, bad_words=((best,),)), 0)
    assert sample(sampler, logits, [0]).tokens[0] not in (4, best)
    sampler.seat(seated([]), Sampling(temperature=0.0), 0)
    assert sample(sampler, logits, [0]).tokens[0] == best


@pytest.mark.parametrize("threads", [1, 2])
def test_a_constrained_row_draws_the_same_in_any_batch(
    threads: int, set_threads: Callable[[int], None]
) -> None:
    settings = [
        Sampling(temperature=0.9, seed=seed, **constraints)
        for seed, constraints in enumerate([*SETTINGS, {}, {"presence_penalty": 1.0}])
    ]
    settings.append(Sampling(temperature=0.0))
    num = len(settings)
    logits = random_logits(num, seed=1)
    set_threads(2)
    sampler = sampler_of(*settings)
    together = [sample(sampler, logits, range(num), 9 + step).tokens for step in range(4)]
    set_threads(threads)

    for seat in range(num):
        alone = sampler_of(*settings)
        for step in range(4):
            found = sample(alone, logits[seat : seat + 1], [seat], 9 + step)
            assert found.tokens[0] == together[step][seat]


def test_rows_without_constraints_are_never_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch without these settings pays nothing for them."""
    sampler = sampler_of(*[Sampling(temperature=0.0)] * 3)
    monkeypatch.setattr(Constraints, "applied", None)

    assert sampler._shaped(random_logits(3), np.arange(3, dtype=np.int32)) == {}
