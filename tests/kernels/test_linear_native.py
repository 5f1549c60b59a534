"""Matrix products by the C++ kernels, of every level that this machine has."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cadenza.kernels import native as kernels
from cadenza.kernels.linear import backend, linear, linear_reference, native, onednn, pack
from cadenza.kernels.linear.native import PackedWeight
from tests.kernels.conftest import assert_close, randn, same_bits

needs_library = pytest.mark.skipif(not native.levels(), reason="there was no compiler")

DTYPES = (torch.float32, torch.bfloat16)
LEVELS = native.levels() or ("portable",)  # skipped, where there are none
# Of each dtype, the levels that differ
KINDS = [(dtype, level) for dtype in DTYPES for level in native.levels(dtype) or ("portable",)]
# Sums of up to 8,192 fp32 products in one fixed order; in bf16 half a unit in the last place
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-3}
# out, in: tiles of 32 outputs with a remainder, pairs and 32s of inputs with one, and long sums
SHAPES = ((1, 1), (3, 5), (31, 33), (40, 72), (64, 2), (100, 577), (576, 1536), (33, 8192))
MOST_ROWS = 512


def product(x: Tensor, weight: PackedWeight, threads: int) -> Tensor:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return weight.multiply(x)
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler")
def test_where_there_is_a_compiler_there_are_kernels():
    assert native.levels()


@needs_library
@pytest.mark.parametrize("level", LEVELS)
def test_all_threads_compute_as_their_caller_is_set(level: str):
    """Who flushes denormals has them flushed in every row."""
    packed = PackedWeight(torch.full((512, 64), 1e-20), level)
    x = torch.full((96, 64), 1e-20)
    kept = product(x, packed, 3)  # on threads that are older than the setting
    assert torch.set_flush_denormal(True)
    try:
        for _ in range(20):
            flushed = product(x, packed, 3)
            assert len(flushed.unique()) == 1
    finally:
        torch.set_flush_denormal(False)
    assert len(kept.unique()) == 1
    assert len(product(x, packed, 3).unique()) == 1


@needs_library
@pytest.mark.parametrize(("dtype", "level"), KINDS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_level_computes_what_the_reference_does(
    shape: tuple[int, int], dtype: torch.dtype, level: str
):
    weight = randn(*shape, dtype=dtype, seed=1)
    packed = PackedWeight(weight, level)
    assert packed.out_features == shape[0]
    for rows in (0, 1, 2, 5, 6, 7, 11, 12, 13, 16, 17, 32, 33, 40, 97):
        x = randn(rows, shape[1], dtype=dtype, seed=rows)
        expected = linear_reference(x, weight)
        exact = x.double() @ weight.double().t()

        y = packed.multiply(x)

        assert (y.shape, y.dtype) == ((rows, shape[0]), dtype)
        if rows:
            # either may have rounded the other way
            assert_close(f"{rows} rows, reference", y, expected.double(), 2 * TOLERANCE[dtype])
            assert_close(f"{rows} rows, exact", y, exact, TOLERANCE[dtype])


@needs_library
@pytest.mark.parametrize(("dtype", "level"), KINDS, ids=str)
@pytest.mark.parametrize("shape", [(100, 577), (200, 576), (33, 2048)], ids=str)
def test_a_row_is_the_same_alone_in_any_place_and_on_any_number_of_threads(
    shape: tuple[int, int], dtype: torch.dtype, level: str
):
    packed = PackedWeight(randn(*shape, dtype=dtype, seed=1), level)
    x = randn(MOST_ROWS, shape[1], dtype=dtype)
    alone = torch.cat([product(row, packed, 1) for row in x.split(1)])

    for threads in (1, 2, 3):
        for size in (*range(2, 41), 97, 193, MOST_ROWS):
            for start in {0, 1, MOST_ROWS - size} if size < MOST_ROWS else {0}:
                y = product(x[start : start + size], packed, threads)
                assert same_bits(y, alone[start : start + size]), (
                    f"{size} rows from {start} on {threads} threads differ"
                )
        for chunk in (7, 32):
            y = torch.cat([product(part, packed, threads) for part in x.split(chunk)])
            assert same_bits(y, alone), f"chunks of {chunk} on {threads} threads differ"


@needs_library
@pytest.mark.parametrize(("dtype", "level"), KINDS, ids=str)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_in_its_row(poison: float, dtype: torch.dtype, level: str):
    packed = PackedWeight(randn(70, 45, dtype=dtype, seed=1), level)
    x = randn(40, 45, dtype=dtype)
    clean = packed.multiply(x)
    for row in (0, 5, 16, 39):
        x[row, row] = poison

    y = packed.multiply(x)

    poisoned = torch.zeros(40, dtype=torch.bool)
    poisoned[[0, 5, 16, 39]] = True
    assert not y[poisoned].isfinite().any()
    assert same_bits(y[~poisoned], clean[~poisoned])


@needs_library
@pytest.mark.parametrize(("dtype", "level"), KINDS, ids=str)
def test_a_weight_that_is_not_finite_stays_in_its_output(dtype: torch.dtype, level: str):
    weight = randn(70, 45, dtype=dtype, seed=1)
    x = randn(9, 45, dtype=dtype)
    clean = PackedWeight(weight, level).multiply(x)
    weight[33, 7] = float("nan")

    y = PackedWeight(weight, level).multiply(x)

    others = torch.arange(70) != 33
    assert y[:, 33].isnan().all()
    assert same_bits(y[:, others], clean[:, others])


@needs_library
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_memory_in_another_order_gives_the_same(dtype: torch.dtype):
    weight, x = randn(40, 72, dtype=dtype, seed=1), randn(20, 72, dtype=dtype)
    expected = PackedWeight(weight).multiply(x)

    assert same_bits(PackedWeight(weight.t().contiguous().t()).multiply(x), expected)
    assert same_bits(PackedWeight(weight).multiply(x.t().contiguous().t()), expected)
    assert same_bits(PackedWeight(weight).multiply(x.repeat(1, 2)[:, :72]), expected)


@needs_library
def test_a_packed_weight_keeps_nothing_of_the_tensor():
    weight, x = randn(40, 72, seed=1), randn(3, 72)
    packed = PackedWeight(weight)
    expected = packed.multiply(x)
    weight.zero_()

    assert same_bits(packed.multiply(x), expected)


@needs_library
def test_what_cannot_be_multiplied_is_refused():
    packed = PackedWeight(randn(4, 8))
    for x, described in (
        (randn(8), r"x is \[8\] of float32 on cpu"),
        (randn(2, 7), r"x is \[2, 7\] of float32 on cpu"),
        (randn(2, 8, dtype=torch.bfloat16), r"x is \[2, 8\] of bfloat16 on cpu"),
        (torch.zeros(2, 8, device="meta"), r"x is \[2, 8\] of float32 on meta"),
    ):
        with pytest.raises(ValueError, match=described + r".*takes \[rows, 8\] of float32"):
            packed.multiply(x)


@needs_library
def test_what_is_no_weight_is_refused():
    for weight in (randn(3), randn(2, 3, dtype=torch.float16), torch.zeros(2, 3, device="meta")):
        with pytest.raises(ValueError, match="not a fp32 or bf16 matrix on the CPU"):
            PackedWeight(weight)
    with pytest.raises(ValueError, match="level is 'sse9', not one of portable"):
        PackedWeight(randn(2, 3), "sse9")


def test_without_the_library_the_products_are_as_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native, "library", lambda: None)
    weight, x = randn(40, 72, seed=1), randn(20, 72)

    assert native.levels() == ()
    assert backend(torch.float32) in ("onednn", "torch")
    assert_close("product", linear(x, pack(weight)), x.double() @ weight.double().t(), 5e-6)
    with pytest.raises(RuntimeError, match="not compiled"):
        PackedWeight(weight)
    monkeypatch.setattr(onednn, "is_supported", lambda dtype: False)
    assert backend(torch.float32) == "torch"
    assert same_bits(linear(x, pack(weight)), linear_reference(x, weight))


def test_a_library_that_cannot_be_loaded_is_as_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "__init__.py"))
    assert kernels.library.__wrapped__() is None
    for suffix in kernels.EXTENSION_SUFFIXES:
        (tmp_path / f"_kernels{suffix}").write_bytes(b"no library")
    assert kernels.library.__wrapped__() is None


@needs_library
def test_packing_chooses_the_kernels_and_the_fastest_level():
    assert isinstance(pack(randn(2, 3)), PackedWeight)
    assert isinstance(pack(randn(2, 3, dtype=torch.bfloat16)), PackedWeight)
    levels = native.levels()
    assert backend(torch.float32) == f"native {levels[:3][-1]}"  # avx512 at most
    assert backend(torch.bfloat16).removeprefix("native ") in {*levels[:3], *levels[4:]}
    assert native.levels(torch.int8) == tuple(each for each in levels if each != "avx512-bf16")
    assert backend(torch.float16) in ("onednn", "torch")


def in_a_process(code: str) -> str:
    """What a program prints that has a packed weight, its rows, and their product on 2 threads."""
    setup = (
        "import os, torch\n"
        "from cadenza.kernels.linear.native import PackedWeight\n"
        "torch.set_num_threads(2)\n"
        "packed, x = PackedWeight(torch.randn(256, 512)), torch.randn(64, 512)\n"
        "expected = packed.multiply(x)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", setup + code], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_library
def test_a_forked_child_has_threads_of_its_own():
    code = (
        "def threads(): return len(os.listdir('/proc/self/task'))\n"
        "child = os.fork()\n"
        "before, right = threads(), torch.equal(packed.multiply(x), expected)\n"
        "print(child == 0, right, threads() - before, flush=True)\n"
        "os.waitpid(child, 0) if child else os._exit(0)\n"
    )
    assert set(in_a_process(code).splitlines()) == {"True True 1", "False True 0"}


@needs_library
def test_there_is_one_openmp_runtime_in_the_process():
    """torch's own: a second one would have threads of its own that spin on the same cores."""
    code = (
        "torch.randn(300, 300) @ torch.randn(300, 300)\n"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if '.so' in line}, sep='\\n')"
    )
    mapped = [Path(line).name for line in in_a_process(code).splitlines()]

    assert [name for name in mapped if name.startswith("_kernels.")]
    assert len([name for name in mapped if re.match(r"lib(gomp|iomp|omp)", name)]) <= 1


@needs_library
def test_threads_that_multiply_at_once_do_not_disturb_each_other():
    packed, x = PackedWeight(randn(512, 256, seed=1)), randn(40, 256)
    expected = product(x, packed, 1)

    def multiply(_: int) -> bool:
        return all(same_bits(packed.multiply(x), expected) for _ in range(50))

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with ThreadPoolExecutor(4) as pool:
        right = list(pool.map(multiply, range(4)))
    torch.set_num_threads(before)

    assert right == [True] * 4
