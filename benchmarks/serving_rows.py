"""The figures of `make bench-serving`: our variants beside peers, and what is aimed at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from serving_load import Load, Measured


class Variant(NamedTuple):
    """A way in which we serve the model."""

    name: str
    quantization: str  # `cadenza serve`'s
    targets: dict[int, tuple[float, float]]  # streams -> least tok/s and most TTFT, times vLLM's

    @property
    def options(self) -> tuple[str, ...]:
        return ("--dtype", "bfloat16", "--quantization", self.quantization)


VARIANTS = {
    "bf16": Variant("bf16", "none", {1: (2.0, 1.0), 8: (2.0, 0.5), 32: (1.05, 1.0)}),
    "int8": Variant("int8", "int8", {32: (1.5, 1.0)}),
}


class Row(NamedTuple):
    """One of our variants beside one peer under one load."""

    variant: Variant
    peer: str
    load: Load
    ours: Measured | None  # None: not every request was answered in full
    theirs: Measured | None
    limit: float  # tok/s

    @property
    def ratio(self) -> float | None:
        return self.ours.tok_s / self.theirs.tok_s if self.ours and self.theirs else None

    def figures(self) -> dict[str, Any]:
        ours, theirs = self.ours, self.theirs
        return {
            "peer": self.peer,
            "streams": self.load.streams,
            "input": self.load.input,
            "output": self.load.output,
            "quantization": self.variant.name,
            "tok_s": ours and round(ours.tok_s, 1),
            "peer_tok_s": theirs and round(theirs.tok_s, 1),
            "ratio": self.ratio and round(self.ratio, 3),
            "ttft_ms": ours and round(ours.ttft_ms, 1),
            "peer_ttft_ms": theirs and round(theirs.ttft_ms, 1),
            "limit_share": ours and round(ours.tok_s / self.limit, 3),
        }

    def __str__(self) -> str:
        def cells(measured: Measured | None) -> str:
            if measured is None:
                return f"{'none':>10}{'':8}{'none':>10}"
            share = measured.tok_s / self.limit
            return f"{measured.tok_s:10.1f}{share:8.0%}{measured.ttft_ms:10.0f}"

        ratio = "" if self.ratio is None else f"{self.ratio:8.2f}"
        what = f"{self.variant.name:6}{self.peer:11}{self.load!s:>16}{self.limit:9.0f}"
        return f"{what}{cells(self.ours)}  {cells(self.theirs)}{ratio}"


def header() -> str:
    side = f"{'tok/s':>10}{'limit':>8}{'TTFT ms':>10}"
    what = f"{'':6}{'':11}{'streams x in/out':>16}{'limit':>9}"
    return f"{'':{len(what)}}{'ours':>10}{'':18}  {'peer':>10}\n{what}{side}  {side}{'ratio':>8}"


def targets(rows: Sequence[Row]) -> Iterator[str]:
    """What is aimed at beside vLLM, what was measured, and whether that meets it."""
    for row in rows:
        aims = row.variant.targets.get(row.load.streams)
        if row.peer != "vllm" or not (row.ours and row.theirs and aims):
            continue
        least, most = aims
        tok_s, ttft = row.ours.tok_s / row.theirs.tok_s, row.ours.ttft_ms / row.theirs.ttft_ms
        yield (
            f"{row.variant.name} {row.load}: tok/s {tok_s:.2f} times vLLM's, at least {least}: "
            f"{verdict(tok_s >= least)}; TTFT {ttft:.2f} times, at most {most}: "
            f"{verdict(ttft <= most)}"
        )


def verdict(is_met: bool) -> str:
    return "met" if is_met else "NOT MET"
