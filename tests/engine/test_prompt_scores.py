"""Scores of prompts, against passes that end at each of their tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.kernels.logprobs import logprobs as logprobs_of
from cadenza.kernels.logprobs.reference import _best
from cadenza.scheduler.plan import PromptScores
from cadenza.wire.messages import Sampling
from tests.engine.conftest import Demo, Row, load_demo, make_plan, random_tokens, save_tiny

VOCAB = 101
PROMPT = random_tokens(150, seed=3, vocab_size=VOCAB)  # more than one slice
OTHER = random_tokens(20, seed=4, vocab_size=VOCAB)
TOP = 5
BLOCKS = list(range(10))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder)
    return load_demo("float32", model=str(folder))


def scored(demo: Demo, *chunks: int, beside: bool = False, tokens: int = 0) -> list[PromptScores]:
    """The scores of all chunks of the prompt; it is followed by `tokens` of output."""
    sequence = PROMPT + random_tokens(tokens, seed=5, vocab_size=VOCAB)
    demo.settings[0] = Sampling(temperature=0.0, prompt_logprobs=TOP), 0
    demo.settings[7] = Sampling(temperature=0.0), 0
    scores, done = [], 0
    for index, chunk in enumerate(chunks):
        done += chunk
        rows = [Row(sequence[:done], chunk, BLOCKS, prompt_tokens=len(PROMPT))]
        if beside:
            rows.append(Row(OTHER, len(OTHER), [20, 21], request=7))
        plan = make_plan(*rows, seated=index == 0)
        histories = np.zeros((2, 200), dtype=np.int32)  # the scheduler's have all of a prompt
        histories[0, : len(sequence)], histories[1, : len(OTHER)] = sequence, OTHER
        plan = replace(plan, histories=histories)
        scores += demo.runner.execute(plan).prompt_scores
    return scores


def joined(scores: list[PromptScores]) -> list[np.ndarray]:
    """All arrays, whole; the parts must follow each other."""
    ends = [part.first + len(part.logprobs) for part in scores]
    assert [part.first for part in scores] == [1, *ends[:-1]]
    assert ends[-1] == len(PROMPT)
    assert {part.request for part in scores} == {0}
    return [np.concatenate(arrays) for arrays in list(zip(*scores, strict=True))[2:]]


def test_scores_are_those_of_a_pass_that_ends_there(tiny: Demo) -> None:
    logprobs, ranks, top_ids, top_logprobs = joined(scored(tiny, len(PROMPT)))

    tiny.settings[0] = Sampling(temperature=0.0), 0
    for end in (1, 17, 128, 129, 149):
        plan = make_plan(Row(PROMPT[:end], end, BLOCKS))
        logits = tiny.runner.logits(plan)
        token = PROMPT[end]
        (told,) = logprobs_of(logits, [0], [token], [TOP])
        assert logprobs[end - 1] == told.sampled
        assert ranks[end - 1] == 1 + int((logits[0] > logits[0, token]).sum())
        best = sorted(range(logits.shape[1]), key=lambda i: (-float(logits[0, i]), i))[:TOP]
        assert top_ids[end - 1].tolist() == best
        assert top_logprobs[end - 1].tolist() == told.top_logprobs.tolist()


@pytest.mark.parametrize(
    ("chunks", "beside"), [((1, 149), True), ((16, 16, 118), False), ((149, 1), True)]
)
def test_chunks_and_neighbours_change_no_bit(
    tiny: Demo, chunks: tuple[int, ...], beside: bool
) -> None:
    whole = joined(scored(tiny, len(PROMPT)))
    parted = joined(scored(tiny, *chunks, beside=beside))

    for left, right in zip(whole, parted, strict=True):
        assert np.array_equal(left, right)


def test_the_output_is_not_scored_and_ends_the_scoring(tiny: Demo) -> None:
    scores = scored(tiny, 150, 1, 1, tokens=2)

    joined(scores)
    assert not tiny.runner._scorer.is_needed


def test_a_row_that_comes_back_scores_what_it_computes_again(tiny: Demo) -> None:
    """Prompt and output in one pass, as after a preemption."""
    whole = joined(scored(tiny, len(PROMPT)))
    again = joined(scored(tiny, 153, tokens=3))

    assert all(np.array_equal(left, right) for left, right in zip(whole, again, strict=True))


def test_nothing_is_scored_where_nobody_asked(tiny: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny.runner._scorer, "scores", None)
    tiny.settings[0] = Sampling(temperature=0.0), 0
    plan = make_plan(Row(OTHER, 20, BLOCKS))

    assert list(tiny.runner.execute(plan).prompt_scores) == []


def test_no_best_tokens_may_be_wanted(tiny: Demo) -> None:
    tiny.settings[0] = Sampling(temperature=0.0, prompt_logprobs=0), 0
    [scores] = tiny.runner.execute(make_plan(Row(OTHER, 20, BLOCKS))).prompt_scores

    assert scores.top_ids.shape == scores.top_logprobs.shape == (19, 0)


def test_a_prompt_of_one_token_has_no_scores(tiny: Demo) -> None:
    tiny.settings[0] = Sampling(temperature=0.0, prompt_logprobs=2), 0

    assert list(tiny.runner.execute(make_plan(Row([5], 1, BLOCKS))).prompt_scores) == []
    assert not tiny.runner._scorer.is_needed


def test_choices_that_share_the_prompt_end_the_scoring_together(tiny: Demo) -> None:
    """They may end with the token that they draw first, and never have a row of their own."""
    for choice in range(3):
        tiny.settings[choice] = Sampling(temperature=0.0, prompt_logprobs=2), choice
    plan = make_plan(Row(OTHER, 20, BLOCKS, samples=3))

    [scores] = tiny.runner.execute(plan).prompt_scores
    assert len(scores.logprobs) == 19
    assert not tiny.runner._scorer.is_needed


@pytest.mark.parametrize("bad", [[0], [9], [18], [0, 1, 9, 18], [*range(19)]])
def test_what_is_not_a_number_spoils_no_other_position(
    tiny: Demo, monkeypatch: pytest.MonkeyPatch, bad: list[int]
) -> None:
    tiny.settings[0] = Sampling(temperature=0.0, prompt_logprobs=TOP), 0
    plan = make_plan(Row(OTHER, 20, BLOCKS))
    [right] = tiny.runner.execute(plan).prompt_scores
    hidden = type(tiny.runner._model).hidden

    def spoilt(*args: Any) -> torch.Tensor:
        states = hidden(*args)
        states[bad] = torch.nan
        return states

    monkeypatch.setattr(type(tiny.runner._model), "hidden", spoilt)
    outcome = tiny.runner.execute(plan)

    [scores] = outcome.prompt_scores
    good = [index for index in range(19) if index not in bad]
    for told, expected in zip(scores[2:], right[2:], strict=True):
        assert np.array_equal(told[good], expected[good])
    assert np.isneginf(scores.logprobs[bad]).all()
    assert (scores.top_ids[bad] == np.arange(TOP)).all()
    assert not outcome.failed.any()


def test_equal_logits_are_told_by_id_as_those_of_the_output_are() -> None:
    """In bf16 many are equal."""
    logits = torch.randint(0, 6, (50, 40), generator=torch.Generator().manual_seed(2)).float()
    logits[3, 5:] = -torch.inf

    found = _best(logits, 7).tolist()

    for row, ids in zip(logits.tolist(), found, strict=True):
        assert ids == sorted(range(40), key=lambda token: (-row[token], token))[:7]
