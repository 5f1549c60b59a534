"""Memory for weights and caches."""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from cadenza.kernels.large_pages import LargePages, zeros

PAGE = 2 << 20


@pytest.mark.parametrize("num_bytes", [1, 4096, PAGE - 1, PAGE, 3 * PAGE + 5])
def test_bytes_are_zeros_and_begin_at_a_page_that_they_fill(num_bytes: int) -> None:
    memory = zeros(num_bytes)

    assert len(memory) == num_bytes
    assert not memory.any()
    assert memory.data_ptr() % (PAGE if num_bytes >= PAGE else mmap.PAGESIZE) == 0
    memory.fill_(7)  # all of it is there


def test_there_may_be_none() -> None:
    assert len(zeros(0)) == 0
    assert len(LargePages().take(0)) == 0


def test_more_than_there_is_raises() -> None:
    with pytest.raises((OSError, OverflowError)):
        zeros(1 << 62)


def test_no_memory_for_weights_says_so() -> None:
    with pytest.raises(
        MemoryError, match="no memory for 4,611,686,018,427,387,904 bytes of weights"
    ):
        LargePages().take(1 << 62)


def test_a_system_without_large_pages_has_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 12345, raising=False)  # refused with EINVAL
    assert len(zeros(PAGE)) == PAGE
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    assert len(zeros(PAGE)) == PAGE


def test_pieces_share_chunks_and_no_byte() -> None:
    pages = LargePages()
    sizes = [1, 64, 65, 1000, 5 << 20, 40 << 20, 3, 31 << 20, 2 << 20] * 2

    with ThreadPoolExecutor(4) as pool:
        pieces = list(pool.map(pages.take, sizes))

    assert [len(piece) for piece in pieces] == sizes
    assert all(piece.data_ptr() % 64 == 0 for piece in pieces)
    ranges = sorted((piece.data_ptr(), piece.data_ptr() + len(piece)) for piece in pieces)
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
    assert pieces[0].untyped_storage().data_ptr() != pieces[5].untyped_storage().data_ptr()


def test_a_piece_outlives_who_handed_it_out() -> None:
    piece = LargePages().take(100)
    piece.fill_(3)
    assert piece.sum() == 300
