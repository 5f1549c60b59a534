"""The Triton decode kernel: interpreted, compiled for two architectures, and on a GPU."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cadenza.kernels.paged_attention import paged_attention
from tests.kernels.conftest import PagedStep, assert_close, randn

_COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from cadenza.kernels.paged_attention.triton import _paged_decode_kernel as kernel

names = kernel.arg_names
constants = {"GROUP": 3, "HEAD_DIM": 64, "BLOCK_SIZE": 16, "BLOCK_M": 16, "BLOCK_D": 64,
             "BLOCK_N": 64, "WIDEN": False}
for dtype in ("fp16", "bf16", "fp32"):
    kinds = {"q_ptr": f"*{dtype}", "cache_ptr": f"*{dtype}", "out_ptr": f"*{dtype}",
             "tables_ptr": "*i32", "tokens_ptr": "*i32", "lengths_ptr": "*i32", "scale": "fp32"}
    signature = {
        name: kinds.get(name, "constexpr" if name in constants else "i64") for name in names
    }
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
    )
    compiled = compile(source, target=GPUTarget("cuda", CAPABILITY, 32))
    assert len(compiled.asm["cubin"]) > 1000
    assert ".target sm_CAPABILITY" in compiled.asm["ptx"]
    print(compiled.metadata.shared)
"""


def _run(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        env={**variables, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("which", ["not extra", pytest.param("extra", marks=pytest.mark.extra)])
def test_the_interpreted_kernel_passes_its_tests(which: str) -> None:
    cases = Path(__file__).parent / "interpreted_paged_decode.py"
    options = ["-p", "no:cacheprovider", "-m", which]

    done = _run(["-m", "pytest", *options, str(cases)], TRITON_INTERPRET="1")

    assert done.returncode == 0, done.stdout + done.stderr


# sm_80 has 163 KiB of shared memory a block, sm_90 227
@pytest.mark.parametrize(
    ("capability", "shared_kib"), [pytest.param(80, 163, marks=pytest.mark.extra), (90, 227)]
)
def test_the_kernel_compiles_ahead_of_time(
    capability: int, shared_kib: int, tmp_path: Path
) -> None:
    script = _COMPILE.replace("CAPABILITY", str(capability))
    # a cache of its own, so that the compiler really runs
    done = _run(["-c", script], TRITON_CACHE_DIR=str(tmp_path), TRITON_DEFAULT_FP_FUSION="1")

    assert done.returncode == 0, done.stderr
    sizes = [int(size) for size in done.stdout.split()]
    assert len(sizes) == 3
    assert max(sizes) <= shared_kib * 1024


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "shape", [(9, 3, 64, 16), (4, 4, 80, 1), (8, 2, 32, 4), (34, 2, 6, 8)], ids=str
)
def test_a_gpu_attends_as_the_exact_sum_does(
    shape: tuple[int, int, int, int], dtype: torch.dtype, make_step: Callable[..., PagedStep]
) -> None:
    """Decoding rows through the compiled kernel, one prefill through the reference."""
    heads, kv_heads, head_dim, block_size = shape
    rows = [(1, 1), (15, 1), (16, 1), (63, 1), (64, 1), (65, 1), (70, 33), (900, 1)]
    step = make_step(
        [randn(new, heads, head_dim, dtype=dtype, seed=i) for i, (_, new) in enumerate(rows)],
        [randn(n, 2, kv_heads, head_dim, dtype=dtype, seed=n) for n, _ in rows],
        block_size,
    )

    found = paged_attention(step.queries.cuda(), step.cache.cuda(), step.layout("cuda"), 0.17)

    # fp32: sums in another order; fp16 and bf16: weights and result have 11 and 8 bits
    tolerance = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    assert_close("out", found.cpu(), step.exact(0.17), tolerance)
