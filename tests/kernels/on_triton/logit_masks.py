"""Masks of logits: the bits are those of plain torch, and what is not named is left alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cadenza.engine.sampler import Sampler
from cadenza.kernels.logit_masks import (
    HostMasks,
    Masks,
    RowMask,
    apply_masks,
    masked_reference,
    masks_of,
    packed,
)
from cadenza.scheduler.plan import Seated
from cadenza.wire.arrays import pack_ids
from cadenza.wire.messages import Sampling
from tests.kernels.conftest import randn, same_bits
from tests.kernels.on_triton.conftest import DEVICE, nans


def sent(host: HostMasks) -> Masks:
    return host.on_device([torch.from_numpy(array).to(DEVICE) for array in host.arrays])


def applied(logits: Tensor, masks: dict[int, RowMask]) -> Tensor:
    found = logits.to(DEVICE).clone()
    apply_masks(found, sent(masks_of(masks, logits.shape[1])))
    return found.cpu()


def expected_of(logits: Tensor, masks: dict[int, RowMask]) -> Tensor:
    rows = [masked_reference(row, masks[n]) if n in masks else row for n, row in enumerate(logits)]
    return torch.stack(rows)


def row_mask(
    biases: list[tuple[int, float]] | None = None,
    allowed: np.ndarray | None = None,
    forbidden: list[int] | None = None,
) -> RowMask:
    ids, values = zip(*biases, strict=True) if biases else ((), ())
    columns = np.array(ids, dtype=np.int32), np.array(values, dtype=np.float32)
    return RowMask(*columns, allowed, forbidden or [])


@pytest.mark.parametrize("size", [1, 31, 32, 33, 1024, 2500])
def test_masks_have_the_bits_of_the_reference(size: int) -> None:
    """Rows of each kind and of all, beside rows of none; ids at both ends; lists of any length."""
    random = np.random.default_rng(size)
    last = size - 1

    def some(count: int) -> list[int]:
        return random.integers(0, size, count).tolist()

    biases = [(token, float(random.normal() * 10)) for token in [last, 0, *some(300), last]]
    masks = {
        1: row_mask(biases),
        2: row_mask(allowed=packed(np.array([last]), size)),
        3: row_mask(forbidden=[0, last, last]),
        5: row_mask(biases[::-1], packed(np.array([0, last, *some(40)]), size), some(5)),
        6: row_mask(),
        7: row_mask(allowed=packed(np.arange(size), size)),
    }
    logits = 4 * randn(9, size)

    found = applied(logits, masks)

    assert same_bits(found, expected_of(logits, masks))
    assert found[2].isfinite().nonzero().flatten().tolist() == [last]
    assert same_bits(found[[0, 4, 6, 7, 8]], logits[[0, 4, 6, 7, 8]])


def test_biases_of_one_token_are_added_one_after_another() -> None:
    logits = torch.ones(1, 40)
    many = [(39, 3e7), (7, 1.0), (39, -3e7), (39, 0.25)]
    masks = {0: row_mask(many)}

    found = applied(logits, masks)

    assert same_bits(found, expected_of(logits, masks))
    # 1 is lost beside 3e7; added in another order it would not be
    assert found[0, [7, 39]].tolist() == [2.0, 0.25]


def test_what_is_not_named_is_left_and_what_is_forbidden_is_so_whatever_it_was() -> None:
    size = 1100
    masks = {
        0: row_mask([(5, 1.0)], forbidden=[1099, 0, 6]),
        2: row_mask([(6, 2.0)], packed(np.array([6, 1099]), size)),
    }
    poisoned = nans(3, size).cpu()
    poisoned[2, 3] = torch.inf

    found = applied(poisoned, masks)

    assert found[0].isneginf().nonzero().flatten().tolist() == [0, 6, 1099]
    assert int(found[0].isnan().sum()) == size - 3
    assert found[1].isnan().all()
    assert found[2].isnan().nonzero().flatten().tolist() == [6, 1099]
    assert int(found[2].isneginf().sum()) == size - 2


def test_a_grammar_s_bits_are_words_of_32_tokens() -> None:
    words = packed(np.array([0, 31, 32, 65]), 66)

    assert words.dtype == np.int32
    assert words.tolist() == [-(2**31) + 1, 1, 2]


def test_no_rows_and_no_masks_are_no_work() -> None:
    apply_masks(nans(0, 33), sent(masks_of({}, 33)))
    assert applied(nans(2, 33).cpu(), {}).isnan().all()


def test_misfits_are_refused() -> None:
    masks = sent(masks_of({0: row_mask([(1, 1.0)], packed(np.array([1]), 33))}, 33))

    with pytest.raises(ValueError, match="strides"):
        apply_masks(nans(2, 33).half(), masks)
    with pytest.raises(ValueError, match="strides"):
        apply_masks(nans(33, 2).T, masks)
    with pytest.raises(ValueError, match="do not fit"):
        apply_masks(nans(2, 65), masks)
    with pytest.raises(ValueError, match="do not fit"):
        apply_masks(nans(2, 33), masks._replace(biases=masks.biases[:0]))


def test_a_step_is_shaped_as_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constraints, then penalties, by what is told in the step's upload, step after step."""
    size, prompt = 900, [3, 1, 2]
    bias = {"bias_ids": pack_ids([3, 899]), "biases": np.array([9.5, 8.0], dtype="<f4").tobytes()}
    settings = [
        Sampling(temperature=0.0, **bias),
        Sampling(temperature=0.0),
        Sampling(temperature=0.8, seed=5, allowed_ids=pack_ids([0, 7, 899]), bad_words=((7,),)),
        Sampling(temperature=0.0, repetition_penalty=3.0, min_tokens=2, ending_ids=(8,), **bias),
        Sampling(temperature=0.0, presence_penalty=50.0),
        Sampling(temperature=0.9, seed=6, top_k=2, top_p=0.9, allowed_ids=pack_ids([4, 5, 6, 7])),
    ]
    logits = 4 * randn(len(settings), size)
    logits[3, 8] = 90.0

    def tokens_of(device: str) -> list[list[int]]:
        sampler = Sampler(len(settings), size, torch.device(device))
        for seat, sampling in enumerate(settings):
            seated = Seated(seat, 0, np.array(prompt, dtype=np.int32), len(prompt))
            sampler.seat(seated, sampling, 0)
        seats, found = np.arange(len(settings), dtype=np.int32), []
        for position in range(3, 7):
            draws = sampler.draws(seats, np.full(len(seats), position, dtype=np.int32))
            tensors = [torch.from_numpy(array).to(device) for array in draws.arrays]
            on_device = logits.to(device)
            tokens = sampler.draw(on_device, draws, tensors).cpu().numpy()
            assert same_bits(on_device.cpu(), logits)
            found.append(sampler.drawn(on_device, draws, tokens).tokens.tolist())
        return found

    by_triton = tokens_of(DEVICE)
    monkeypatch.setattr("cadenza.engine.sampler.uses_triton", lambda _: False)
    monkeypatch.setattr("cadenza.kernels.sampling.uses_triton", lambda _: False)
    monkeypatch.setattr("cadenza.kernels.penalties.uses_triton", lambda _: False)

    assert by_triton == tokens_of("cpu")
    assert [tokens[3] == 8 for tokens in by_triton] == [False, False, True, True]
