"""Paged attention: decoding rows, chunks, windows, splits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from cadenza.kernels.paged_attention.query_tiles import QueryTiles, Splits, plan_tiles
from cadenza.kernels.paged_attention.triton import paged_attention_triton
from tests.kernels.conftest import PagedStep, assert_close, randn, same_bits
from tests.kernels.on_triton.conftest import DEVICE, TOLERANCES, each_dtype, nans

SCALE = 0.17
MakeStep = Callable[..., PagedStep]
# keys and new tokens a row: decoding around a block and a tile of keys, chunks around a query tile
ROWS = [(1, 1), (16, 1), (64, 1), (65, 1), (7, 7), (70, 23), (150, 2)]


class Shape(NamedTuple):
    """Of the heads and the cache."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int


# groups of 1, 3, 4 and 17; 6, 80 and 96 dimensions are padded, 17 heads too
SHAPES = [
    Shape(9, 3, 64, 16),
    Shape(2, 2, 80, 1),
    Shape(4, 1, 128, 4),
    Shape(34, 2, 6, 8),
    Shape(2, 1, 256, 128),
    Shape(3, 1, 96, 32),
]


def step_of(
    make_step: MakeStep, shape: Shape, dtype: torch.dtype, rows: list[tuple[int, int]] = ROWS
) -> PagedStep:
    step = make_step(
        [randn(new, shape.heads, shape.head_dim, seed=7 * i) for i, (_, new) in enumerate(rows)],
        [randn(n, 2, shape.kv_heads, shape.head_dim, seed=i) for i, (n, _) in enumerate(rows)],
        shape.block_size,
    )
    return replace(
        step,
        queries=step.queries.to(DEVICE, dtype),
        cache=step.cache.to(DEVICE, dtype),
        keys=[keys.to(dtype) for keys in step.keys],
    )


def tiles_of(step: PagedStep, invariant: bool = False) -> tuple[QueryTiles, ...]:
    num_new = np.array(step.num_new)
    return plan_tiles(
        np.array(step.lengths) - num_new,
        num_new,
        step.block_tables,
        kv_heads=step.cache.shape[3],
        group=step.queries.shape[1] // step.cache.shape[3],
        head_dim=step.cache.shape[4],
        device=torch.device(DEVICE),
        invariant=invariant,
    )


def attended(
    step: PagedStep,
    batches: tuple[QueryTiles, ...],
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    out = nans(*step.queries.shape, dtype=step.queries.dtype)
    for tiles in batches:
        paged_attention_triton(step.queries, step.cache, tiles, SCALE, out, window, softcap)
    return out.cpu()


def exact(step: PagedStep, window: int | None = None, softcap: float | None = None) -> Tensor:
    return replace(step, queries=step.queries.cpu()).exact(SCALE, window, softcap)


@each_dtype
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_decodes_and_chunks_attend_as_the_exact_sum_does(
    shape: Shape, dtype: torch.dtype, make_step: MakeStep
) -> None:
    step = step_of(make_step, shape, dtype)

    found = attended(step, tiles_of(step))

    assert_close("out", found, exact(step), TOLERANCES[dtype])


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(shape, marks=[pytest.mark.extra] * (nth > 0))
        for nth, shape in enumerate(SHAPES[2:])
    ],
    ids=str,
)
def test_odd_shapes_attend_as_the_exact_sum_does(shape: Shape, make_step: MakeStep) -> None:
    rows = [(65, 1), (12, 3)]
    step = step_of(make_step, shape, torch.float32, rows)

    assert_close("split", attended(step, tiles_of(step)), exact(step), 2e-6)
    found = attended(step, tiles_of(step, invariant=True))
    assert_close("invariant", found, exact(step), 2e-6)


@pytest.mark.parametrize("window", [pytest.param(1, marks=pytest.mark.extra), 64, 70])
def test_a_window_hides_what_lies_before_it(window: int, make_step: MakeStep) -> None:
    step = step_of(make_step, Shape(3, 1, 64, 16), torch.float32, [(135, 1), (70, 9)])

    for invariant in (False, True):
        found = attended(step, tiles_of(step, invariant), window)
        assert_close("out", found, exact(step, window), 2e-6)


def test_a_softcap_bounds_the_scores(make_step: MakeStep) -> None:
    step = step_of(make_step, SHAPES[0], torch.float32, [(70, 1), (40, 9)])

    found = attended(step, tiles_of(step), softcap=2.0)

    assert_close("out", found, exact(step, softcap=2.0), 2e-6)
    assert not torch.allclose(found, attended(step, tiles_of(step)), atol=1e-3)


@pytest.mark.parametrize("splits", [Splits(3, 0), Splits(16, 0), Splits(4, 64)])
@pytest.mark.parametrize("window", [None, 70])
def test_splits_of_any_number_and_size_give_the_same_sum(
    splits: Splits, window: int | None, make_step: MakeStep
) -> None:
    """More splits than tiles of keys too, whose programs have nothing to do."""
    step = step_of(make_step, Shape(3, 1, 64, 16), torch.float32, [(1, 1), (64, 1), (200, 1)])
    batches = tuple(tiles._replace(splits=splits) for tiles in tiles_of(step))

    assert_close("out", attended(step, batches, window), exact(step, window), 2e-6)


@pytest.mark.parametrize("window", [None, pytest.param(70, marks=pytest.mark.extra)])
def test_invariant_bits_depend_neither_on_company_nor_on_chunks(
    window: int | None, make_step: MakeStep
) -> None:
    """The same 150 tokens, alone and beside others, token by token and in chunks."""
    shape, length = Shape(3, 1, 32, 16), 150
    queries, keys = randn(length, 3, 32, seed=1), randn(length, 2, 1, 32, seed=2)

    def bits(chunks: list[tuple[int, int]], company: list[tuple[int, int]]) -> list[Tensor]:
        found = []
        for end, new in chunks:
            step = make_step(
                [queries[end - new : end], *(randn(n, 3, 32, seed=3) for _, n in company)],
                [keys[:end], *(randn(n, 2, 1, 32, seed=4) for n, _ in company)],
                shape.block_size,
            )
            step = replace(step, queries=step.queries.to(DEVICE), cache=step.cache.to(DEVICE))
            # smaller splits than real ones, so that a short row has several
            (tiles,) = tiles_of(step, invariant=True)
            assert tiles.splits == Splits(1, 512)
            split = tiles._replace(splits=Splits(4, 64))
            found.append(attended(step, (split,), window)[:new])
        return found

    whole = torch.cat(bits([(110, 110), (150, 40)], []))
    beside = torch.cat(bits([(105, 105), (150, 45)], [(200, 1), (5, 5)]))
    one_by_one = torch.cat(bits([(n, 1) for n in range(126, 132)], [(9, 9)]))

    assert same_bits(beside, whole)
    assert same_bits(one_by_one, whole[125:131])


def test_invariant_splits_lie_at_fixed_places_whatever_the_batch(make_step: MakeStep) -> None:
    rows = [(1, 1), (1100, 1), (40, 30)]
    step = step_of(make_step, Shape(4, 4, 16, 16), torch.float32, rows)

    (together,) = tiles_of(step, invariant=True)
    (decodes, prefills) = tiles_of(step)

    assert together.splits == Splits(3, 512)
    assert together.counts.tolist() == [1, 1, 16, 14]
    assert decodes.splits.keys == prefills.splits.keys == 0


def test_tiles_without_positions_and_other_tokens_are_left_alone(make_step: MakeStep) -> None:
    """As a graph pads a batch: rows of no length, whose block table means nothing."""
    step = step_of(make_step, SHAPES[0], torch.float32, [(65, 1), (20, 1), (30, 1)])
    (tiles,) = tiles_of(step)
    padded = tiles._replace(
        counts=tiles.counts * torch.tensor([1, 0, 1], dtype=torch.int32, device=DEVICE)
    )
    for splits in (Splits(1, 0), Splits(4, 0)):
        found = attended(step, (padded._replace(splits=splits),))
        assert found[1].isnan().all()
        assert_close("out", found[[0, 2]], exact(step)[[0, 2]], 2e-6)


def test_strided_queries_are_read_in_place(make_step: MakeStep) -> None:
    """As the model passes them: a slice of the product of queries, keys and values."""
    step = step_of(make_step, SHAPES[0], torch.float32, [(65, 1), (20, 3)])
    wide = nans(4, 15, 64)
    wide[:, :9] = step.queries
    tiles = tiles_of(step)

    found = attended(replace(step, queries=wide[:, :9]), tiles)

    assert same_bits(found, attended(step, tiles))


def test_misfits_are_refused(make_step: MakeStep) -> None:
    step = step_of(make_step, SHAPES[0], torch.float32, [(20, 1)])
    (tiles,) = tiles_of(step)
    queries, cache, out = step.queries, step.cache, nans(*step.queries.shape)

    def refuse(match: str, *arguments: object) -> None:
        with pytest.raises(ValueError, match=match):
            paged_attention_triton(*arguments)  # type: ignore[arg-type]

    refuse("int32", queries, cache, tiles._replace(rows=tiles.rows.long()), SCALE, out)
    refuse("equally long", queries, cache, tiles._replace(counts=tiles.counts[:0]), SCALE, out)
    refuse("last dimension", queries.mT.contiguous().mT, cache, tiles, SCALE, out)
    refuse("dtypes", queries.half(), cache, tiles, SCALE, out)
    refuse("shapes", queries[:, :, :32], cache, tiles, SCALE, out[:, :, :32])
    refuse("cannot share", queries[:, :8], cache, tiles, SCALE, out[:, :8])
    refuse("power of two", queries, cache[:, :, :12], tiles, SCALE, out)
