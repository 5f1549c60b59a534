"""Made-up traces: bursts, shared prefixes, tenants of unequal size, heavy tails."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cadenza.policies.errors import quoted, unknown
from cadenza.simulator.errors import SimulatorError
from cadenza.simulator.trace import Trace, TraceRequest

PREFIX = "synthetic:"
BLOCK_TOKENS = 16
_MOST = 10_000_000

FloatArray = npt.NDArray[np.float64]


class Shape(NamedTuple):
    """What a made-up trace looks like. Lengths are in tokens."""

    requests: int = 1000
    rate: float = 4.0  # arrivals a second
    burst: float = 1.0  # coefficient of variation of the gaps; 1: Poisson, above it: bursts
    prompt: float = 500.0  # mean, of what is not shared
    output: float = 200.0  # mean
    tail: float = 0.8  # sigma of both lognormals; 0: all are equal, 1.5: a heavy tail
    prefixes: int = 0  # different shared beginnings; 0: none
    prefix: int = 1024  # of each of them
    shared: float = 1.0  # share of the requests that begin with one
    tenants: int = 1
    skew: float = 1.0  # tenant k sends as 1 / k**skew; 0: all the same


def shape_of(text: str) -> Shape:
    """Of `requests=500,rate=2`; what is left out is as usual.

    Raises:
        SimulatorError: there is no such property, or it cannot be this.
    """
    given: dict[str, float | int] = {}
    for pair in filter(None, text.split(",")):
        name, _, value = pair.partition("=")
        if name not in Shape._fields:
            raise SimulatorError(unknown("property", name, Shape._fields, "properties"))
        is_whole = isinstance(Shape._field_defaults[name], int)
        try:
            given[name] = int(value) if is_whole else float(value)
        except ValueError as error:
            kind = "a whole number" if is_whole else "a number"
            raise SimulatorError(f"{name} must be {kind}, and is {quoted(value)}") from error
    shape = Shape(**given)  # type: ignore[arg-type]
    _check(shape)
    return shape


def _check(shape: Shape) -> None:
    for name, least, most in (
        ("requests", 1, _MOST),
        ("rate", 1e-6, 1e6),
        ("burst", 1e-3, 100),
        ("prompt", 1, 1e6),
        ("output", 1, 1e6),
        ("tail", 0, 3),
        ("prefixes", 0, _MOST),
        ("prefix", BLOCK_TOKENS, 1 << 20),
        ("shared", 0, 1),
        ("tenants", 1, 10_000),
        ("skew", 0, 10),
    ):
        value = getattr(shape, name)
        if not least <= value <= most:
            raise SimulatorError(f"{name} must be from {least:g} to {most:g}, and is {value:g}")


def synthetic(shape: Shape, seed: int) -> Trace:
    """A trace of this shape; the same for the same seed.

    Gaps are gamma-distributed, lengths lognormal around their means.
    """
    rng = np.random.default_rng(seed)
    num = shape.requests
    gaps = rng.gamma(shape.burst**-2, shape.burst**2 / shape.rate, num)
    arrivals = np.cumsum(gaps) - gaps[0]
    prompts = _lengths(rng, shape.prompt, shape.tail, num)
    outputs = _lengths(rng, shape.output, shape.tail, num)
    weights = np.arange(1.0, shape.tenants + 1) ** -shape.skew
    tenants = rng.choice(shape.tenants, num, p=weights / weights.sum())
    prefixes = rng.integers(max(1, shape.prefixes), size=num)
    shares = (rng.random(num) < shape.shared) & (shape.prefixes > 0)
    num_blocks = shape.prefix // BLOCK_TOKENS
    requests = [
        TraceRequest(
            arrival_s=arrival,
            prompt_tokens=prompt + shares_prefix * num_blocks * BLOCK_TOKENS,
            output_tokens=output,
            tenant=f"tenant-{tenant + 1}" if shape.tenants > 1 else "",
            blocks=tuple(range(prefix * num_blocks, (prefix + 1) * num_blocks))
            if shares_prefix
            else (),
        )
        for arrival, prompt, output, tenant, prefix, shares_prefix in zip(
            arrivals.tolist(),
            prompts.tolist(),
            outputs.tolist(),
            tenants.tolist(),
            prefixes.tolist(),
            shares.tolist(),
            strict=True,
        )
    ]
    told = ",".join(f"{name}={value:g}" for name, value in shape._asdict().items())
    return Trace(
        source=f"{PREFIX}{told}",
        kind="synthetic",
        requests=requests,
        block_tokens=BLOCK_TOKENS,
        notes=(f"seed {seed}",),
    )


def _lengths(
    rng: np.random.Generator, mean: float, sigma: float, num: int
) -> npt.NDArray[np.int64]:
    drawn = rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, num)
    return np.clip(np.rint(drawn), 1, 1 << 20).astype(np.int64)
