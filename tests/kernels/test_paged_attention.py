from collections.abc import Callable
from typing import Any

import pytest
import torch

from cadenza.kernels.paged_attention import layout as layout_module
from cadenza.kernels.paged_attention import paged_attention, tiles

SCALE = 0.17
# heads, KV heads, head_dim, block_size
SHAPES = [(9, 3, 64, 16), (4, 4, 80, 1), (8, 1, 32, 128), (6, 2, 6, 64), (5, 1, 64, 8)]
MakeStep = Callable[..., Any]


def _row(
    length: int, num_new: int, shape: tuple[int, int, int, int], dtype: torch.dtype, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries [num_new, heads, head_dim] and keys [length, 2, kv_heads, head_dim] of one row."""
    heads, kv_heads, head_dim, _ = shape
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(length, heads, head_dim, generator=generator).to(dtype)
    keys = torch.randn(length, 2, kv_heads, head_dim, generator=generator).to(dtype)
    return queries[length - num_new :], keys


def _attend(step: Any) -> torch.Tensor:
    return paged_attention(step.queries, step.cache, step.layout(), SCALE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_attends_as_dense_attention_does(
    shape: tuple[int, int, int, int], dtype: torch.dtype, make_step: MakeStep
) -> None:
    """Decodes and prefills of many lengths in one step; what no row wrote is NaN."""
    counts = [(1, 1), (300, 1), (65, 1), (64, 1), (130, 130), (70, 5), (200, 66), (2, 2)]
    rows = [_row(length, new, shape, dtype, i) for i, (length, new) in enumerate(counts)]
    step = make_step([q for q, _ in rows], [k for _, k in rows], shape[3])

    out = _attend(step)

    # bf16: half a unit in the last place of the result, all else is fp32
    atol = 5e-6 if dtype == torch.float32 else 1e-6
    rtol = 1e-5 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(out.double(), step.exact(SCALE), rtol=rtol, atol=atol)
    assert out.dtype == dtype


@pytest.mark.parametrize("limits", [{"window": 1}, {"window": 70}, {"softcap": 1.5}], ids=str)
def test_windows_and_softcaps_are_those_of_dense_attention(
    limits: dict[str, Any], make_step: MakeStep
) -> None:
    shape = SHAPES[0]
    counts = [(1, 1), (300, 1), (70, 1), (71, 1), (130, 130), (200, 66)]
    rows = [_row(length, new, shape, torch.float32, i) for i, (length, new) in enumerate(counts)]
    step = make_step([q for q, _ in rows], [k for _, k in rows], shape[3])

    out = paged_attention(step.queries, step.cache, step.layout(**limits), SCALE)

    torch.testing.assert_close(out.double(), step.exact(SCALE, **limits), rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("fixed_length", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(9, 3, 64, 16), (4, 4, 80, 8), (8, 1, 32, 128)])
def test_a_token_has_the_same_bits_in_any_chunk_and_company(
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    threads: int,
    fixed_length: bool,
    make_step: MakeStep,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fixed_length:
        monkeypatch.setattr(layout_module, "piece_lengths", lambda group, head_dim: (4,))
    total = 150
    queries, keys = _row(total, total, shape, dtype, 0)
    torch.set_num_threads(2)
    whole = _attend(make_step([queries], [keys], shape[3]))
    torch.set_num_threads(threads)
    others = [_row(length, new, shape, dtype, length) for length, new in ((700, 1), (3, 3))]

    for chunk in (1, 7, 32, 64, 150):
        for start in range(0, total, chunk)[:: max(1, 40 // chunk)]:
            end = min(start + chunk, total)
            alone = make_step([queries[start:end]], [keys[:end]], shape[3], seed=start)
            assert torch.equal(whole[start:end], _attend(alone)), (chunk, start)
            batch = make_step(
                [others[0][0], queries[start:end], others[1][0]],
                [others[0][1], keys[:end], others[1][1]],
                shape[3],
                seed=start + 1,
            )
            assert torch.equal(whole[start:end], _attend(batch)[1:-3]), (chunk, start)


def test_a_row_of_nan_harms_no_other_row(make_step: MakeStep) -> None:
    shape = SHAPES[0]
    rows = [_row(70, 1, shape, torch.float32, seed) for seed in range(3)]
    clean = _attend(make_step([q for q, _ in rows], [k for _, k in rows], shape[3]))
    rows[1][1][5] = float("nan")

    out = _attend(make_step([q for q, _ in rows], [k for _, k in rows], shape[3]))

    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], clean[[0, 2]])


def test_decoding_rows_of_like_length_make_one_batch(make_step: MakeStep) -> None:
    shape = SHAPES[0]
    lengths = [60, 50, 64, 40, 2000, 1500]
    rows = [_row(length, 1, shape, torch.float32, 0) for length in lengths]

    layout = make_step([q for q, _ in rows], [k for _, k in rows], shape[3]).layout()

    # 1500 within twice of 2000; the short ones would be padded thirtyfold
    assert sorted(batch.num_pieces for batch in layout.batches) == [2, 4]


def test_lengths_that_are_not_bit_equal_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    multiply = torch.bmm

    def blocked_by_rows(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return multiply(left, right) + (1e-6 if left.shape[1] == 4 else 0.0)

    monkeypatch.setattr(torch, "bmm", blocked_by_rows)

    assert tiles.piece_lengths.__wrapped__(3, 64) == (4,)


def test_one_query_row_alone_would_not_be_bit_equal() -> None:
    """Why query rows are padded to a multiple of 4."""
    assert all(tiles.padded_rows(n, g) % 4 == 0 for n in (1, 4, 16) for g in (1, 3, 5, 8))
    assert tiles.padded_rows(1, 3) == 4
