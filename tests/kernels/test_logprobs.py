"""Log-probabilities by the C++ kernels, of every level that this machine has, and the reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from cadenza.kernels.logprobs import RowLogprobs, logprobs, logprobs_reference, native
from tests.kernels.conftest import randn
from tests.kernels.sampling import LEVELS

needs_library = pytest.mark.skipif(native._function() is None, reason="there was no compiler")
INF = math.inf


def same(left: list[RowLogprobs], right: list[RowLogprobs]) -> bool:
    return all(
        mine.sampled == theirs.sampled
        and mine.top_ids.tolist() == theirs.top_ids.tolist()
        and mine.top_logprobs.tolist() == theirs.top_logprobs.tolist()
        for mine, theirs in zip(left, right, strict=True)
    )


@needs_library
@pytest.mark.parametrize("size", [1, 7, 256, 300, 4100, 49_152])
def test_every_level_tells_what_the_reference_does(size: int):
    logits = randn(6, size, seed=size) * 5
    logits[4] = 7.0  # all equal
    logits[5, 1:] = -INF
    rows, counts = [5, 0, 1, 2, 3, 4, 5], [3, 0, 1, 5, 20, 500, 0]
    tokens = [0, 0, size // 2, size - 1, size // 3, 0, 0]
    exact = torch.log_softmax(logits.double(), -1)

    found = native.logprobs(logits, rows, tokens, counts, "portable")

    expected = logprobs_reference(logits, rows, tokens, counts)
    for row, token, mine, theirs in zip(rows, tokens, found, expected, strict=True):
        assert mine.top_ids.tolist() == theirs.top_ids.tolist()
        assert (mine.top_ids.dtype, mine.top_logprobs.dtype) == (np.int32, np.float32)
        assert mine.sampled == pytest.approx(float(exact[row, token]), rel=1e-6, abs=1e-7)
        best = exact[row, torch.from_numpy(mine.top_ids).long()]
        assert mine.top_logprobs.tolist() == pytest.approx(best.tolist(), rel=1e-6, abs=1e-7)
    for level in LEVELS:
        assert same(native.logprobs(logits, rows, tokens, counts, level), found)


@needs_library
def test_a_row_is_told_the_same_in_any_batch_and_at_any_address(threads: int):
    logits = randn(9, 1001) * 3
    rows = list(range(9))
    together = logprobs(logits, rows, rows, rows)
    moved = torch.zeros(9, 1003)
    moved[:, 2:] = logits

    assert same(logprobs(moved[:, 2:], rows, rows, rows), together)
    assert same(logprobs(logits.t().contiguous().t(), rows, rows, rows), together)
    for row in rows:
        assert same(logprobs(logits[row : row + 1], [0], [row], [row]), together[row : row + 1])


def test_a_token_that_is_masked_has_no_probability():
    logits = torch.tensor([[-INF, 0.0, -INF, -INF]])

    for tell in (logprobs, logprobs_reference):
        (found,) = tell(logits, [0], [2], [3])
        assert found.sampled == -INF
        assert found.top_ids.tolist() == [1, 0, 2]
        assert found.top_logprobs.tolist() == [0.0, -INF, -INF]


def test_without_the_library_the_reference_tells(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native, "_function", lambda: None)
    logits: Tensor = randn(2, 50)

    assert same(logprobs(logits, [1], [3], [4]), logprobs_reference(logits, [1], [3], [4]))
    with pytest.raises(RuntimeError, match="not compiled"):
        native.logprobs(logits, [1], [3], [4])
