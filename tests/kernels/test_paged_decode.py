"""The Triton decode kernel, without a GPU: interpreted, and compiled for two architectures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from cadenza.kernels.paged_attention.triton import _paged_decode_kernel as kernel

names = kernel.arg_names
kinds = {"q_ptr": "*DTYPE", "cache_ptr": "*DTYPE", "out_ptr": "*DTYPE", "tables_ptr": "*i32",
         "tokens_ptr": "*i32", "lengths_ptr": "*i32", "scale": "fp32"}
constants = {"GROUP": 3, "HEAD_DIM": 64, "BLOCK_SIZE": 16, "BLOCK_M": 16, "BLOCK_D": 64,
             "BLOCK_N": 64, "WIDEN": False}
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


def test_the_interpreted_kernel_passes_its_tests() -> None:
    cases = Path(__file__).parent / "interpreted_paged_decode.py"

    done = _run(["-m", "pytest", "-p", "no:cacheprovider", str(cases)], TRITON_INTERPRET="1")

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernel_compiles_ahead_of_time(capability: int, dtype: str, tmp_path: Path) -> None:
    script = _COMPILE.replace("DTYPE", dtype).replace("CAPABILITY", str(capability))
    # a cache of its own, so that the compiler really runs
    done = _run(["-c", script], TRITON_CACHE_DIR=str(tmp_path), TRITON_DEFAULT_FP_FUSION="1")

    assert done.returncode == 0, done.stderr
    # sm_80 has 163 KiB of shared memory a block, sm_90 227
    assert int(done.stdout) <= 163 * 1024
