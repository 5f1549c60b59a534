"""What every Triton kernel takes of a GPU, compiled ahead of time on a machine that has none.

The launchers themselves are called, with tensors that have shapes and no memory, so that what is
compiled is what a GPU would be given: the same constants, the same alignments. Launches end where
the kernel is compiled. Compiling needs a process in which nothing is interpreted:

    python -m tests.kernels.compiling 80 90 100

prints a line of JSON a kernel and target. Registers and spills are what Triton's `cuobjdump` says
of the machine code, shared memory what the compiler reserved.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.runtime.jit import JITFunction  # type: ignore[import-untyped]

from tests.kernels.launches import LAUNCHES

TARGETS = (80, 90, 100)
# A block's shared memory in bytes, by compute capability:
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications
SHARED_LIMITS = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}


class Resources(NamedTuple):
    """Of one kernel, as one launch specialises it."""

    kernel: str
    launch: str
    target: int  # compute capability, times ten
    warps: int
    registers: int  # a thread
    spilled: int  # bytes a thread
    shared: int  # bytes a program


class _Target:
    """Stands for a driver; each target is a device of its own, so that each is compiled for."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return self._capability

    def get_current_stream(self, device: int) -> int:
        return 0


def compiled(targets: tuple[int, ...]) -> Iterator[Resources]:
    """Compile all launches for all targets."""
    if triton.knobs.runtime.interpret:
        raise RuntimeError("an interpreted kernel does not compile: unset TRITON_INTERPRET")
    kernels: list[Any] = []
    run = JITFunction.run

    def compile_only(function: Any, *args: Any, warmup: bool, **kwargs: Any) -> Any:
        kernels.append(run(function, *args, warmup=True, **kwargs))
        return kernels[-1]

    JITFunction.run = compile_only
    try:
        for target in targets:
            triton.runtime.driver.set_active(_Target(target))
            for name, launch in LAUNCHES.items():
                kernels.clear()
                launch()
                for kernel in kernels:
                    yield _resources(kernel, name, target)
    finally:
        JITFunction.run = run


def _resources(kernel: Any, launch: str, target: int) -> Resources:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, local = (
        int(re.search(rf"\b{word}:(\d+)", told)[1])  # type: ignore[index]
        for word in ("REG", "STACK", "LOCAL")
    )
    metadata = kernel.metadata
    assert f".target sm_{target}" in kernel.asm["ptx"]
    return Resources(
        metadata.name.strip("_").removesuffix("_kernel"),
        launch,
        target,
        metadata.num_warps,
        registers,
        stack + local,
        metadata.shared,
    )


def main() -> None:
    # not a GPU, whatever the machine has
    assert torch.empty(1, device="meta").data_ptr() == 0
    for resources in compiled(tuple(map(int, sys.argv[1:])) or TARGETS):
        sys.stdout.write(json.dumps(resources._asdict()) + "\n")


if __name__ == "__main__":
    main()
