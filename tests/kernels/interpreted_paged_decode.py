"""The Triton decode kernel in Triton's interpreter.

The interpreter must be chosen before the kernel is defined, so test_paged_decode.py runs this
file in a process of its own, with TRITON_INTERPRET=1.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cadenza.kernels.paged_attention import DecodeRows, paged_attention
from cadenza.kernels.paged_attention.triton import paged_decode

SCALE = 0.17


def _step(
    make_step: Callable[..., Any], shape: tuple[int, int, int, int], dtype: torch.dtype
) -> Any:
    heads, kv_heads, head_dim, block_size = shape
    torch.manual_seed(0)
    lengths = [1, block_size, 64, 65, 200]
    queries = [torch.randn(1, heads, head_dim).to(dtype) for _ in lengths]
    keys = [torch.randn(length, 2, kv_heads, head_dim).to(dtype) for length in lengths]
    return make_step(queries, keys, block_size)


def _decode(step: Any, rows: list[int]) -> torch.Tensor:
    """Run the kernel for some rows; the other rows of the result stay NaN."""
    out = torch.full_like(step.queries, float("nan"))
    decode = DecodeRows(
        tokens=torch.tensor(rows, dtype=torch.int32),
        lengths=torch.tensor(step.lengths, dtype=torch.int32)[rows],
        block_tables=torch.from_numpy(step.block_tables)[rows],
    )
    paged_decode(step.queries, step.cache, decode, SCALE, out)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(9, 3, 64, 16), (4, 4, 80, 1), (8, 1, 32, 128), (34, 2, 6, 8)])
def test_the_kernel_agrees_with_the_reference(
    shape: tuple[int, int, int, int], dtype: torch.dtype, make_step: Callable[..., Any]
) -> None:
    step = _step(make_step, shape, dtype)

    out = _decode(step, list(range(5)))

    reference = paged_attention(step.queries, step.cache, step.layout(), SCALE)
    # fp16 and bf16: the weights are rounded too, to 11 and 8 bits, before they meet the values
    tolerance = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    torch.testing.assert_close(out, reference, rtol=tolerance, atol=tolerance)


def test_a_row_has_the_same_bits_alone(make_step: Callable[..., Any]) -> None:
    step = _step(make_step, (9, 3, 64, 16), torch.bfloat16)
    together = _decode(step, list(range(5)))

    for row in range(5):
        alone = _decode(step, [row])
        assert torch.equal(alone[row], together[row])
        assert alone[[other for other in range(5) if other != row]].isnan().all()


def test_misfits_are_refused(make_step: Callable[..., Any]) -> None:
    step = _step(make_step, (9, 3, 64, 16), torch.float32)
    rows = DecodeRows(
        torch.zeros(1, dtype=torch.int32),
        torch.ones(1, dtype=torch.int32),
        torch.zeros(1, 1, dtype=torch.int32),
    )
    out = torch.empty_like(step.queries)

    with pytest.raises(ValueError, match="dtypes"):
        paged_decode(step.queries.half(), step.cache, rows, SCALE, out)
    with pytest.raises(ValueError, match="shapes"):
        paged_decode(step.queries[:, :, :32], step.cache, rows, SCALE, out[:, :, :32])
    with pytest.raises(ValueError, match="cannot share"):
        paged_decode(step.queries[:, :8], step.cache, rows, SCALE, out[:, :8])
    with pytest.raises(ValueError, match="power of two"):
        paged_decode(step.queries, step.cache[:, :, :12], rows, SCALE, out)
