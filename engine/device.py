"""Streams of a device that works beside the host: what is asked of it, CUDA's, and the host's own.

What the engine does on several streams goes through `Device`, so that tests run it in every order
that the streams allow, on a machine without a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

Work = Callable[[], None]


class Stream(Enum):
    """Work on one stream is done in order; on two of them in any, but for `Device.wait`."""

    COMPUTE = "compute"  # the forward pass, and what reads and writes device blocks
    COPY = "copy"  # between the device and the host


class Span(Protocol):
    """A piece of work that a stream was given."""

    def wait(self) -> float:
        """Wait on the host until it is done, and return how long it took, in seconds."""
        ...


class Memory(NamedTuple):
    """A device's own memory, in bytes."""

    free: int  # that nobody has taken, of all processes
    total: int


class Device(Protocol):
    """What runs work on streams. Calls return before the work is done."""

    @property
    def works_beside(self) -> bool:
        """Whether work goes on while the host does something else."""
        ...

    def run(self, stream: Stream, work: Work) -> Span:
        """Give `work` to a stream. What it uses stays allocated until somebody has waited."""
        ...

    def wait(self, stream: Stream, on: Stream) -> None:
        """Let what `stream` is given from now on start after what `on` was given until now."""
        ...

    def graph_pool(self) -> object:
        """Return memory that captures may share which are never replayed at the same time."""
        ...

    def capture(self, work: Work, pool: object) -> Work:
        """Do `work` once, then record it, and return what does it again, to be given to a stream.

        Again means the same kernels over the same addresses: what differs from one time to the next
        has to be in tensors that were there before. What `work` allocates, once it is recorded,
        belongs to the pool. What the allocator keeps of work that is over is given back first. On
        the host, where nothing is recorded, it is `work` itself.
        """
        ...

    def host_memory(self, num_bytes: int) -> Tensor:
        """Return host memory [num_bytes] uint8 that copies of this device reach by themselves."""
        ...

    def memory(self) -> Memory | None:
        """Return how much memory the device has of its own; None: it uses the host's."""
        ...


class HostDevice:
    """The host itself, which does work as it is given: then all is done in order."""

    works_beside = False

    def run(self, stream: Stream, work: Work) -> Span:
        start_s = time.perf_counter()
        work()
        return _DoneSpan(time.perf_counter() - start_s)

    def wait(self, stream: Stream, on: Stream) -> None:
        """Nothing is under way."""

    def graph_pool(self) -> None:
        return None

    def capture(self, work: Work, pool: object) -> Work:
        return work

    def host_memory(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def memory(self) -> None:
        return None


@dataclass(frozen=True)
class _DoneSpan:
    took_s: float

    def wait(self) -> float:
        return self.took_s


class CudaDevice:
    """One GPU: its current stream computes, another one copies."""

    works_beside = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams = {
            Stream.COMPUTE: torch.cuda.current_stream(device),
            Stream.COPY: torch.cuda.Stream(device),  # type: ignore[no-untyped-call]
        }

    def run(self, stream: Stream, work: Work) -> Span:
        on = self._streams[stream]
        span = _CudaSpan(on)
        with torch.cuda.stream(on), span:
            work()
        return span

    def wait(self, stream: Stream, on: Stream) -> None:
        self._streams[stream].wait_stream(self._streams[on])

    def graph_pool(self) -> object:
        return torch.cuda.graph_pool_handle()

    def capture(self, work: Work, pool: Any) -> Work:
        # libraries prepare themselves and Triton compiles, which no capture allows
        self.run(Stream.COMPUTE, work).wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            work()
        return graph.replay

    def host_memory(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def memory(self) -> Memory:
        return Memory(*torch.cuda.mem_get_info(self._device))


class _CudaSpan:
    """Between entering and leaving."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def __enter__(self) -> None:
        self._start.record(self._stream)

    def __exit__(self, *_: object) -> None:
        self._end.record(self._stream)

    def wait(self) -> float:
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) / 1e3


def device_of(device: torch.device) -> Device:
    """Return what runs work where tensors of `device` lie."""
    return HostDevice() if device.type == "cpu" else CudaDevice(device)
