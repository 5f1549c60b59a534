"""The Triton decode kernel in Triton's interpreter.

The interpreter must be chosen before the kernel is defined, so test_paged_decode.py runs this
file in a process of its own, with TRITON_INTERPRET=1.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from cadenza.kernels.paged_attention import DecodeRows, paged_attention
from cadenza.kernels.paged_attention.triton import paged_decode
from tests.kernels.conftest import assert_close

SCALE = 0.17
LENGTHS = [1, 15, 16, 17, 63, 64, 65, 200]  # around a block and a tile of keys
ALL = list(range(len(LENGTHS)))
# heads, KV heads, head_dim, block_size: groups of 1, 3, 4, 8 and 17; 6 and 80 are padded
SHAPES = [
    (9, 3, 64, 16),
    (4, 4, 80, 1),
    (8, 2, 32, 4),
    (3, 1, 32, 1),
    (2, 2, 64, 4),
    (8, 1, 32, 128),
    (34, 2, 6, 8),
]


def _step(
    make_step: Callable[..., Any], shape: tuple[int, int, int, int], dtype: torch.dtype
) -> Any:
    heads, kv_heads, head_dim, block_size = shape
    torch.manual_seed(0)
    lengths = LENGTHS
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


def cases() -> Iterator[Any]:
    """Every shape in every type. Every shape in one, and every type in two, is not extra."""
    dtypes = [torch.float32, torch.bfloat16, torch.float16]
    for (nth, shape), (other, dtype) in product(enumerate(SHAPES), enumerate(dtypes)):
        marks = [pytest.mark.extra] * ((nth + other) % 3 > 0)
        yield pytest.param(shape, dtype, id=f"{shape}-{dtype}", marks=marks)


@pytest.mark.parametrize(("shape", "dtype"), list(cases()))
def test_the_kernel_agrees_with_the_reference(
    shape: tuple[int, int, int, int], dtype: torch.dtype, make_step: Callable[..., Any]
) -> None:
    step = _step(make_step, shape, dtype)

    out = _decode(step, ALL)

    reference = paged_attention(step.queries, step.cache, step.layout(), SCALE)
    # fp32: another order of sums; fp16: weights are rounded to 11 bits before they meet the
    # values; bf16: the interpreter cuts the result off after 8 bits instead of rounding it
    tolerance = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    assert_close("out", out, reference, tolerance)


def test_strided_queries_are_read_in_place(make_step: Callable[..., Any]) -> None:
    """As the model passes them: a slice of the product of queries, keys and values."""
    step = _step(make_step, (9, 3, 64, 16), torch.float32)
    wide = torch.full((len(ALL), 15, 64), float("nan"))
    wide[:, :9] = step.queries

    found = _decode(replace(step, queries=wide[:, :9]), ALL)

    assert torch.equal(found, _decode(step, ALL))


def test_a_row_has_the_same_bits_alone(make_step: Callable[..., Any]) -> None:
    step = _step(make_step, (9, 3, 64, 16), torch.bfloat16)
    together = _decode(step, ALL)

    for row in ALL:
        alone = _decode(step, [row])
        assert torch.equal(alone[row], together[row])
        assert alone[[other for other in ALL if other != row]].isnan().all()


def test_misfits_are_refused(make_step: Callable[..., Any]) -> None:
    step = _step(make_step, (9, 3, 64, 16), torch.float32)
    rows = DecodeRows(
        torch.zeros(1, dtype=torch.int32),
        torch.ones(1, dtype=torch.int32),
        torch.zeros(1, 1, dtype=torch.int32),
    )
    out = torch.empty_like(step.queries)

    with pytest.raises(ValueError, match="int32"):
        paged_decode(
            step.queries, step.cache, rows._replace(lengths=rows.lengths.long()), SCALE, out
        )
    with pytest.raises(ValueError, match="as many rows"):
        paged_decode(step.queries, step.cache, rows._replace(lengths=rows.lengths[:0]), SCALE, out)
    with pytest.raises(ValueError, match="contiguous"):
        paged_decode(step.queries.mT.contiguous().mT, step.cache, rows, SCALE, out)
    with pytest.raises(ValueError, match="dtypes"):
        paged_decode(step.queries.half(), step.cache, rows, SCALE, out)
    with pytest.raises(ValueError, match="shapes"):
        paged_decode(step.queries[:, :, :32], step.cache, rows, SCALE, out[:, :, :32])
    with pytest.raises(ValueError, match="cannot share"):
        paged_decode(step.queries[:, :8], step.cache, rows, SCALE, out[:, :8])
    with pytest.raises(ValueError, match="power of two"):
        paged_decode(step.queries, step.cache[:, :, :12], rows, SCALE, out)
