"""Who got how much, by tenant."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cadenza.simulator.run import FloatArray, Run

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0  # of a token's service, as in VTC
_WINDOWS = 200  # of a run, in each of which shares are compared
_LEAST_S = 1.0
_MOST_TENANTS = 50  # that are told one by one


def fairness(run: Run, met: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Jain's index of service, and each tenant's figures, the one with most requests first.

    Over a whole trace every tenant gets what it asked for, whatever decides. So service is compared
    in windows, and only among tenants that had somebody waiting at both ends of the window: the
    mean of (sum W)**2 / (n * sum W**2) over windows with at least two of them, and the largest
    difference of what any two got in one. None where there is no such window.
    """
    names, tenants = _tenants(run)
    if len(names) < 2:
        return {"jain": None, "windows": 0, "largest_difference": None, "tenants": []}
    width_s = max(_LEAST_S, run.span_s / _WINDOWS)
    service = _service(run, tenants, len(names), width_s)
    backlogged = _backlogged(run, tenants, service.shape, width_s)
    indices, differences = [], []
    for got, waits in zip(service, backlogged, strict=True):
        shares = got[waits]
        if len(shares) > 1 and shares.any():
            indices.append(float(shares.sum() ** 2 / (len(shares) * (shares**2).sum())))
            differences.append(float(np.ptp(shares)))
    order = np.argsort(-np.bincount(tenants, minlength=len(names)), kind="stable")
    return {
        "jain": float(np.mean(indices)) if indices else None,
        "windows": len(indices),
        "largest_difference": max(differences, default=None),
        "tenants": [
            _figures(run, names[index], tenants == index, met)
            for index in order[:_MOST_TENANTS].tolist()
        ],
    }


def _tenants(run: Run) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Their names, and each request's as an index."""
    names = sorted({each.tenant for each in run.trace.requests})
    number = {name: index for index, name in enumerate(names)}
    return names, np.array([number[each.tenant] for each in run.trace.requests], dtype=np.int64)


def _service(
    run: Run, tenants: npt.NDArray[np.int64], num: int, width_s: float
) -> npt.NDArray[np.float64]:
    """Weighted tokens, [windows, tenants]; a prompt counts when it is complete."""
    windows = int(run.span_s / width_s) + 1
    service = np.zeros((windows, num))
    tokens = run.tokens
    np.add.at(
        service,
        ((tokens.time_s / width_s).astype(np.int64), tenants[tokens.request]),
        OUTPUT_WEIGHT,
    )
    begun = run.first_s <= run.part_end_s  # nan is not
    prompts = np.array([each.prompt_tokens for each in run.trace.requests])[begun]
    window = (run.first_s[begun] / width_s).astype(np.int64)
    np.add.at(service, (window, tenants[begun]), PROMPT_WEIGHT * prompts)
    return service


def _backlogged(
    run: Run, tenants: npt.NDArray[np.int64], shape: tuple[int, ...], width_s: float
) -> npt.NDArray[np.bool_]:
    """Whether somebody of the tenant waits for a first seat at both ends, [windows, tenants]."""
    windows, num = shape
    changes = np.zeros((windows + 2, num), dtype=np.int64)
    begun = ~np.isnan(run.admitted_s)
    # Edge e is the time e * width: who arrived by then and was admitted only after it waits there
    arrived, admitted = (
        np.minimum(np.ceil(time_s[begun] / width_s).astype(np.int64), windows + 1)
        for time_s in (run.arrival_s, np.minimum(run.admitted_s, run.part_end_s))
    )
    np.add.at(changes, (arrived, tenants[begun]), 1)
    np.add.at(changes, (admitted, tenants[begun]), -1)
    waits = changes.cumsum(axis=0) > 0
    both: npt.NDArray[np.bool_] = waits[:windows] & waits[1 : windows + 1]
    return both


def _figures(
    run: Run, name: str, own: npt.NDArray[np.bool_], met: npt.NDArray[np.bool_]
) -> dict[str, Any]:
    requests = [run.trace.requests[index] for index in np.flatnonzero(own).tolist()]
    prompts = sum(each.prompt_tokens for each in requests)
    return {
        "tenant": name,
        "requests": len(requests),
        "service": PROMPT_WEIGHT * prompts + OUTPUT_WEIGHT * float(run.generated[own].sum()),
        "mean_ttft_s": _mean(run.ttft_s[own]),
        "p99_ttft_s": _p99(run.ttft_s[own]),
        "attainment": float(met[own].mean()),
    }


def _mean(values: FloatArray) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _p99(values: FloatArray) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.percentile(known, 99)) if len(known) else None
