"""Streams of a device that works beside the host: what is asked of it, and CUDA's.

What the engine does on several streams goes through `Device`, so that tests run it in every order
that the streams allow, on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor


class Stream(Enum):
    """Work on one stream is done in order; on two of them in any, but for `Device.wait`."""

    COMPUTE = "compute"  # the forward pass, and what reads and writes device blocks
    COPY = "copy"  # between the device and the host


class Span(Protocol):
    """A piece of work that a stream was given."""

    def wait(self) -> float:
        """Wait on the host until it is done, and return how long it took, in seconds."""
        ...


class Device(Protocol):
    """What runs work on streams. Calls return before the work is done."""

    def run(self, stream: Stream, work: Callable[[], None], uses: tuple[Tensor, ...] = ()) -> Span:
        """Give `work` to a stream.

        uses: tensors allocated for this work, whose memory nobody gets before it is done.
        """
        ...

    def wait(self, stream: Stream, on: Stream) -> None:
        """Let what `stream` is given from now on start after what `on` was given until now."""
        ...


class CudaDevice:
    """One GPU: its current stream computes, another one copies."""

    def __init__(self, device: torch.device) -> None:
        self._streams = {
            Stream.COMPUTE: torch.cuda.current_stream(device),
            Stream.COPY: torch.cuda.Stream(device),  # type: ignore[no-untyped-call]
        }

    def run(self, stream: Stream, work: Callable[[], None], uses: tuple[Tensor, ...] = ()) -> Span:
        on = self._streams[stream]
        span = _CudaSpan(on)
        with torch.cuda.stream(on), span:
            work()
        for tensor in uses:
            tensor.record_stream(on)
        return span

    def wait(self, stream: Stream, on: Stream) -> None:
        self._streams[stream].wait_stream(self._streams[on])


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
