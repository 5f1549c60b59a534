"""KV write, block moves, RMSNorm with its residual, rotary positions, SiLU times up."""

from __future__ import annotations

import pytest
import torch

from cadenza.kernels.block_moves import copy_blocks, gather_blocks, scatter_blocks
from cadenza.kernels.gelu_mul import gelu_mul, gelu_mul_reference
from cadenza.kernels.kv_write import kv_write, kv_write_reference
from cadenza.kernels.penalties import penalised, penalised_reference
from cadenza.kernels.rms_norm import (
    add_rms_norm,
    add_rms_norm_reference,
    rms_norm,
    rms_norm_reference,
)
from cadenza.kernels.rotary_embedding import rotary_embedding, rotary_embedding_reference
from cadenza.kernels.silu_mul import silu_mul, silu_mul_reference
from tests.kernels.conftest import assert_close, randn, same_bits
from tests.kernels.on_triton.conftest import DEVICE, TOLERANCES, each_dtype, nans


@each_dtype
@pytest.mark.parametrize(("heads", "head_dim", "block_size"), [(3, 64, 16), (1, 80, 1), (5, 6, 8)])
def test_kv_write_scatters_all_tokens_but_padding(
    heads: int, head_dim: int, block_size: int, dtype: torch.dtype
) -> None:
    cache = nans(9, 3, 2, block_size, heads, head_dim, dtype=dtype)[:, 1]
    blocks = torch.tensor([4, -1, 0, 8, 4], device=DEVICE)
    offsets = torch.tensor([0, 0, block_size - 1, block_size // 2, 1], device=DEVICE)
    kept = 4 if block_size == 1 else 5  # in a block of one there is no second place
    # as the model passes them: slices of one product
    qkv = randn(kept, 3 * heads, head_dim, dtype=dtype).to(DEVICE)
    parts = qkv[:, heads : 2 * heads], qkv[:, 2 * heads :]
    expected = cache.clone()
    kv_write_reference(*parts, expected, blocks[:kept], offsets[:kept])

    kv_write(*parts, cache, blocks[:kept], offsets[:kept])

    assert same_bits(cache, expected.contiguous())


@each_dtype
@pytest.mark.parametrize("width", [5, 4096 + 3])
def test_blocks_are_gathered_and_scattered(width: int, dtype: torch.dtype) -> None:
    """More than a program copies, and less; and what is not named stays."""
    cache = randn(7, 2, width, dtype=dtype).to(DEVICE)
    blocks = torch.tensor([6, 0, 3], device=DEVICE)
    staging = nans(3, 2, width, dtype=dtype)
    target = nans(7, 2, width, dtype=dtype)

    gather_blocks(cache, blocks, staging)
    scatter_blocks(staging, target, blocks)

    assert same_bits(staging, cache[blocks])
    assert same_bits(target[blocks], cache[blocks])
    assert target[[1, 2, 4, 5]].isnan().all()


def test_a_ring_of_copies_reads_before_it_writes() -> None:
    cache = torch.arange(4.0, device=DEVICE).repeat_interleave(8).view(4, 8)

    copy_blocks(
        cache,
        torch.tensor([1, 2, 3], device=DEVICE),
        torch.tensor([2, 1, 0], device=DEVICE),
    )

    assert cache[:, 0].tolist() == [3, 2, 1, 3]


@each_dtype
@pytest.mark.parametrize("width", [1, 63, 576, 1025])
def test_rms_norm_agrees_with_the_reference(width: int, dtype: torch.dtype) -> None:
    x, residual = (randn(3, width, dtype=dtype, seed=seed).to(DEVICE) for seed in (1, 2))
    weight = randn(width, dtype=dtype, seed=3).to(DEVICE)

    found = rms_norm(x, weight, 1e-5)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)

    tolerance = TOLERANCES[dtype]
    assert_close("normed", found, rms_norm_reference(x, weight, 1e-5), tolerance)
    expected = add_rms_norm_reference(x, residual, weight, 1e-5)
    # where the sum is cut off instead of rounded, norms are off by that too
    assert_close("normed sum", normed, expected[0], 2 * tolerance)
    assert_close("sum", total, expected[1], tolerance)


def test_a_wider_weight_scales_before_the_result_is_rounded() -> None:
    """Weights of about 1 lose what makes them differ where they are rounded to fp16."""
    x, weight = randn(3, 65, dtype=torch.float16).to(DEVICE), (1 + 1e-3 * randn(65)).to(DEVICE)

    found = rms_norm(x, weight, 1e-5)

    assert found.dtype == torch.float16
    exact = rms_norm_reference(x.float(), weight, 1e-5)
    error = (found.float() - exact).abs()
    assert bool((error <= 1.001 * 2.0**-11 * exact.abs() + 1e-6).all()), "rounded once"


def test_rms_norm_takes_heads_in_place() -> None:
    qkv = randn(4, 7, 48).to(DEVICE)
    weight = randn(48, seed=1).to(DEVICE)

    found = rms_norm(qkv[:, 2:5], weight, 1e-6)

    expected = rms_norm_reference(qkv[:, 2:5].contiguous(), weight, 1e-6)
    assert_close("normed", found, expected, 2e-6)


@each_dtype
@pytest.mark.parametrize(("heads", "head_dim", "half"), [(9, 64, 32), (1, 6, 3), (3, 80, 12)])
def test_rotary_embedding_agrees_with_the_reference(
    heads: int, head_dim: int, half: int, dtype: torch.dtype
) -> None:
    """The last shape turns a part of its dimensions only."""
    wide = randn(5, heads + 2, head_dim, dtype=dtype).to(DEVICE)
    angles = randn(5, 1, half, seed=1).to(DEVICE)

    found = rotary_embedding(wide[:, :heads], angles.cos(), angles.sin())

    x = wide[:, :heads]
    if 2 * half == head_dim:
        expected = rotary_embedding_reference(x, angles.cos(), angles.sin())
    else:
        turned = rotary_embedding_reference(x[..., : 2 * half], angles.cos(), angles.sin())
        expected = torch.cat((turned, x[..., 2 * half :]), dim=-1)
    assert_close("rotated", found, expected, TOLERANCES[dtype])


@pytest.mark.filterwarnings("ignore:overflow")  # NumPy's, where exp is infinite as it should be
@each_dtype
@pytest.mark.parametrize("width", [1, 1025])
def test_silu_mul_agrees_with_the_reference(width: int, dtype: torch.dtype) -> None:
    gate_up = (8 * randn(3, 2 * width)).to(DEVICE, dtype)
    gate_up[0, 0] = -100.0  # exp overflows, and the gate is 0

    found = silu_mul(gate_up)

    assert_close("gated", found, silu_mul_reference(gate_up), TOLERANCES[dtype])


@pytest.mark.filterwarnings("ignore:overflow")  # as above
@each_dtype
@pytest.mark.parametrize("width", [1, 1025])
def test_gelu_mul_agrees_with_the_reference(width: int, dtype: torch.dtype) -> None:
    gate_up = (4 * randn(3, 2 * width)).to(DEVICE, dtype)
    gate_up[0, 0] = -100.0  # exp overflows, and the gate is 0

    found = gelu_mul(gate_up)

    assert_close("gated", found, gelu_mul_reference(gate_up), TOLERANCES[dtype])


def test_a_row_has_the_same_bits_alone() -> None:
    x, weight = randn(9, 96).to(DEVICE), randn(96, seed=1).to(DEVICE)

    together = rms_norm(x, weight, 1e-5), silu_mul(x)

    alone = rms_norm(x[4:5], weight, 1e-5), silu_mul(x[4:5])
    assert same_bits(alone[0], together[0][4:5])
    assert same_bits(alone[1], together[1][4:5])


def test_no_rows_are_no_work() -> None:
    weight = randn(8).to(DEVICE)
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)

    assert rms_norm(nans(0, 8), weight, 1e-5).shape == (0, 8)
    assert silu_mul(nans(0, 8)).shape == gelu_mul(nans(0, 8)).shape == (0, 4)
    assert rotary_embedding(nans(0, 2, 8), nans(0, 1, 4), nans(0, 1, 4)).shape == (0, 2, 8)
    copy_blocks(nans(2, 8), none, none)
    kv_write(nans(0, 2, 8), nans(0, 2, 8), nans(3, 2, 4, 2, 8), none, none)


def test_misfits_are_refused() -> None:
    x, ids = nans(4, 8), torch.zeros(4, dtype=torch.int64, device=DEVICE)
    heads, cache = nans(4, 2, 8), nans(3, 2, 4, 2, 8)

    with pytest.raises(ValueError, match="int64"):
        kv_write(heads, heads, cache, ids.int(), ids)
    with pytest.raises(ValueError, match="one element a token"):
        kv_write(heads, heads, cache, ids[:3], ids)
    with pytest.raises(ValueError, match="shapes"):
        kv_write(heads, heads[:, :1], cache, ids, ids)
    with pytest.raises(ValueError, match="dtypes"):
        kv_write(heads, heads.half(), cache, ids, ids)
    with pytest.raises(ValueError, match="do not fit"):
        gather_blocks(x, ids, nans(4, 7))
    with pytest.raises(ValueError, match="contiguous"):
        gather_blocks(x.T, ids, nans(4, 4))
    with pytest.raises(ValueError, match="one element a block"):
        scatter_blocks(nans(3, 8), x, ids)
    with pytest.raises(ValueError, match="do not fit"):
        rms_norm(x, nans(7), 1e-5)
    with pytest.raises(ValueError, match="rows must be contiguous"):
        rms_norm(x.T, nans(4), 1e-5)
    with pytest.raises(ValueError, match="residual"):
        add_rms_norm(x, nans(3, 8), nans(8), 1e-5)
    with pytest.raises(ValueError, match="not float32"):
        rotary_embedding(heads, nans(4, 1, 4).half(), nans(4, 1, 4).half())
    with pytest.raises(ValueError, match="do not fit"):
        rotary_embedding(heads, nans(4, 1, 5), nans(4, 1, 5))
    for gated in (silu_mul, gelu_mul):
        with pytest.raises(ValueError, match="as many values"):
            gated(nans(2, 7))
        with pytest.raises(ValueError, match="rows must be contiguous"):
            gated(nans(8, 2).T)


@pytest.mark.parametrize("parts", ["seen", "counts", "seen and counts"])
def test_penalties_are_rounded_as_on_the_cpu(parts: str) -> None:
    """Over more than a program looks at; what is forbidden stays so."""
    logits = 8 * randn(1500)
    logits[[3, 1400]] = -torch.inf
    seen = (randn(1500, seed=1) > 0).to(DEVICE) if "seen" in parts else None
    counts = randn(1500, seed=2).mul(3).clamp(min=0).round().to(DEVICE)
    given = (seen, counts if "counts" in parts else None)
    sizes = {"repetition": 1.3, "frequency": 0.7, "presence": -0.3}

    found = penalised(logits.to(DEVICE), *given, **sizes)

    on_cpu = [None if column is None else column.cpu() for column in given]
    expected = penalised_reference(logits, *on_cpu, *sizes.values())
    assert same_bits(found.cpu(), expected)
    assert not same_bits(expected, logits)
