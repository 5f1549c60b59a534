"""Poisoned memory, threads, and how two results are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from cadenza.kernels.paged_attention import AttentionLayout, Workspace, plan_attention

# Sizes of a batch: around every padded row count, and past the largest
BATCH_SIZES = (1, 2, 3, 5, 8, 9, 13, 16, 17, 31, 33, 47, 64, 65, 70)
MOST_ROWS = max(BATCH_SIZES)

_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninitialised memory is NaN, so that an output that nobody wrote cannot pass by luck."""

    def poisoning(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def poisoned(*args: object, **kwargs: object) -> Tensor:
            made = make(*args, **kwargs)
            return made.fill_(float("nan")) if made.is_floating_point() else made

        return poisoned

    for owner, name in (
        (torch, "empty"),
        (torch, "empty_like"),
        (torch, "empty_strided"),
        (torch.Tensor, "new_empty"),
    ):
        monkeypatch.setattr(owner, name, poisoning(getattr(owner, name)))


@pytest.fixture(params=[1, 2], ids=["1-thread", "2-threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """The test runs once for each of these thread counts."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Normal values that depend on the seed alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Compare bit by bit: unlike `torch.equal`, NaN equals itself, and 0 is not -0."""
    return torch.equal(left.contiguous().view(_BITS[left.dtype]), right.view(_BITS[right.dtype]))


def assert_close(name: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Assert that the largest error is at most `tolerance` of the largest expected value."""
    assert found.shape == expected.shape, f"{name}: {found.shape}, expected {expected.shape}"
    assert found.isfinite().all(), f"{name}: {int((~found.isfinite()).sum())} values not finite"
    expected = expected.double()
    error = (found.double() - expected).abs()
    largest = float(error.max())
    relative = float(error.square().mean().sqrt() / expected.square().mean().sqrt())
    print(f"{name}: max-abs {largest:.2e}, relative {relative:.2e}")  # noqa: T201
    bound = tolerance * float(expected.abs().max())
    assert largest <= bound, f"{name}: max-abs {largest:.2e} > {bound:.2e}, rel {relative:.2e}"


def assert_rows_are_independent(apply: Callable[[Tensor], Tensor], rows: Tensor) -> None:
    """Assert that `apply` maps each row alike: alone on one thread, and anywhere in a batch.

    rows: [MOST_ROWS, ...]. Batches run on as many threads as are set.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = torch.cat([apply(rows[i : i + 1]) for i in range(len(rows))])
    torch.set_num_threads(threads)
    assert alone.isfinite().all()
    for size in BATCH_SIZES:
        chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(size))[:size]
        assert same_bits(apply(rows[chosen]), alone[chosen]), f"a batch of {size} rows differs"


@dataclass(frozen=True, kw_only=True)
class PagedStep:
    """Rows of one step, their keys and values scattered over a cache that is NaN elsewhere."""

    lengths: list[int]  # keys a row, the new ones counted
    num_new: list[int]
    queries: Tensor  # [tokens, heads, head_dim]
    keys: list[Tensor]  # a row: [length, 2, kv_heads, head_dim]
    cache: Tensor  # [num_blocks, 2, block_size, kv_heads, head_dim]
    block_tables: np.ndarray

    def layout(self, window: int | None = None, softcap: float | None = None) -> AttentionLayout:
        num_new = np.array(self.num_new)
        return plan_attention(
            np.array(self.lengths) - num_new,
            num_new,
            self.block_tables,
            block_size=self.cache.shape[2],
            group=self.queries.shape[1] // self.cache.shape[3],
            head_dim=self.queries.shape[2],
            device=torch.device("cpu"),
            workspace=Workspace(),
            window=window,
            softcap=softcap,
            kv_heads=self.cache.shape[3],
        )

    def exact(
        self, scale: float, window: int | None = None, softcap: float | None = None
    ) -> Tensor:
        """Attend densely, in double precision, one query after another."""
        out, token = [], 0
        for length, num_new, keys in zip(self.lengths, self.num_new, self.keys, strict=True):
            group = self.queries.shape[1] // keys.shape[2]
            k, v = keys.double().repeat_interleave(group, dim=2).unbind(1)
            for position in range(length - num_new, length):
                q = self.queries[token].double()
                seen = slice(0 if window is None else max(0, position + 1 - window), position + 1)
                scores = torch.einsum("hd,lhd->hl", q, k[seen]) * scale
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                out.append(torch.einsum("hl,lhd->hd", scores.softmax(-1), v[seen]))
                token += 1
        return torch.stack(out)


@pytest.fixture
def make_step() -> Callable[..., PagedStep]:
    """Return a function that pages rows: (queries a row, keys a row, block size, seed)."""

    def make(
        queries: list[Tensor], keys: list[Tensor], block_size: int, seed: int = 0
    ) -> PagedStep:
        needed = [-(-len(row) // block_size) for row in keys]
        order = np.random.default_rng(seed).permutation(sum(needed) + 3)
        tables = np.zeros((len(keys), max(needed)), dtype=np.int32)
        # one layer of three, so that strides are those of a real cache
        shape = (len(order), 3, 2, block_size, *keys[0].shape[2:])
        cache = torch.full(shape, float("nan"), dtype=keys[0].dtype)[:, 1]
        taken = 0
        for row, (values, count) in enumerate(zip(keys, needed, strict=True)):
            tables[row, :count] = order[taken : taken + count]
            taken += count
            padded = values.new_full((count * block_size, *values.shape[1:]), float("nan"))
            padded[: len(values)] = values
            blocks = padded.unflatten(0, (count, block_size)).transpose(1, 2)
            cache[torch.from_numpy(tables[row, :count]).long()] = blocks
        return PagedStep(
            lengths=[len(row) for row in keys],
            num_new=[len(row) for row in queries],
            queries=torch.cat(queries),
            keys=keys,
            cache=cache,
            block_tables=tables,
        )

    return make
