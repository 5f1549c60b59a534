"""A report as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]

_NOTHING = "-"


def table(report: Figures) -> str:
    """What was tried, then a column a profile, then what each of them changes."""
    parts = [_heading(report), _profiles(report)]
    parts += [_comparison(each) for each in report["comparisons"]]
    parts += [_tenants(report), _waits(report["profiles"][0]), *report["remarks"]]
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(report: Figures) -> str:
    trace, limits, machine = report["trace"], report["limits"], report["machine"]
    notes = "".join(f"; {note}" for note in trace["notes"])
    return "\n".join(
        (
            f"{trace['source']} ({trace['kind']}{notes})",
            f"{trace['requests']} requests in {_number(trace['span_s'])} s, of "
            f"{_number(trace['mean_prompt_tokens'])} and {_number(trace['mean_output_tokens'])} "
            f"tokens, {trace['tenants']} tenants",
            f"{machine['name']} ({machine['source']})",
            f"{limits['num_blocks']} blocks of {limits['block_size']} tokens, "
            f"{limits['num_host_blocks']} on the host, {limits['max_num_seqs']} seats, "
            f"{limits['max_num_batched_tokens']} tokens a step",
        )
    )


_ROWS = (
    ("TTFT mean, s", ("ttft_s", "mean")),
    ("TTFT p50", ("ttft_s", "p50")),
    ("TTFT p90", ("ttft_s", "p90")),
    ("TTFT p99", ("ttft_s", "p99")),
    ("TPOT mean, s", ("tpot_s", "mean")),
    ("TPOT p99", ("tpot_s", "p99")),
    ("longest gap p99, s", ("longest_gap_s", "p99")),
    ("E2E mean, s", ("e2e_s", "mean")),
    ("E2E p99", ("e2e_s", "p99")),
    ("goodput, requests/s", ("goodput_per_s",)),
    ("within targets", ("attainment",)),
    ("output tokens/s", ("output_tokens_per_s",)),
    ("time with a queue", ("queued_share",)),
    ("KV in use, mean", ("mean_kv_usage",)),
    ("prefix hit rate", ("hit_rate",)),
    ("preempted, recomputed", ("preemptions", "recomputed")),
    ("preempted, swapped", ("preemptions", "swapped")),
    ("tokens recomputed", ("preemptions", "recomputed_tokens")),
    ("tokens swapped", ("preemptions", "swapped_tokens")),
    ("Jain index of service", ("fairness", "jain")),
    ("requests whole", ("whole",)),
)


def _profiles(report: Figures) -> str:
    """A column a profile, and one of what was recorded, where the trace says that."""
    columns = [(each["profile"], each) for each in report["profiles"]]
    if report["recorded"] is not None:
        columns.insert(0, ("recorded", report["recorded"]))
    rows = [("", *(name for name, _ in columns))]
    rows += [(name, *(_found(figures, path) for _, figures in columns)) for name, path in _ROWS]
    return _aligned(rows)


def _comparison(compared: Figures) -> str:
    """Differences with their intervals."""
    base, other = compared["base"], compared["other"]
    rows: list[tuple[str, ...]] = [
        (f"{other} against {base}", base, other, "difference", "95 % interval", "")
    ]
    for name, key in (
        ("TTFT mean, s", "mean_ttft_s"),
        ("TTFT p99", "p99_ttft_s"),
        ("TPOT mean, s", "mean_tpot_s"),
        ("longest gap p99, s", "p99_longest_gap_s"),
        ("E2E mean, s", "mean_e2e_s"),
        ("E2E p99", "p99_e2e_s"),
        ("within targets", "attainment"),
    ):
        change = compared[key]
        if change is not None:
            interval = f"{_number(change['low'])} to {_number(change['high'])}"
            clear = "" if change["is_clear"] else "may be chance"
            figures = (_number(change[each]) for each in ("base", "other", "difference"))
            rows.append((name, *figures, interval, clear))
    before, after = (f"{100 * (share or 0):.1f} %" for share in compared["queued_share"])
    rows.append(("time with a queue", before, after, "", "", ""))
    requests = compared["requests"]
    return _aligned(rows) + (
        f"\n{requests['earlier']} of {requests['compared']} requests end more than 5 % earlier, "
        f"{requests['later']} later"
    )


def _tenants(report: Figures) -> str:
    """Mean times to the first token of the largest tenants."""
    first = report["profiles"][0]["fairness"]["tenants"][:10]
    if not first:
        return ""
    names = [each["tenant"] for each in first]
    rows: list[tuple[str, ...]] = [
        ("tenant", "requests", *(f"TTFT p99, {each['profile']}" for each in report["profiles"]))
    ]
    found = [
        {each["tenant"]: each for each in profile["fairness"]["tenants"]}
        for profile in report["profiles"]
    ]
    for rank, name in enumerate(names):
        figures = (_number(each[name]["p99_ttft_s"]) for each in found)
        rows.append((name or "(none)", str(first[rank]["requests"]), *figures))
    return _aligned(rows)


def _waits(profile: Figures) -> str:
    """Who waited longest, and for what."""
    waits: Sequence[Figures] = profile["longest_waits"][:5]
    if not waits:
        return ""
    rows = [(f"longest waits, {profile['profile']}", "s", "tokens", "for want of", "overtaken by")]
    rows += [
        (
            f"request {wait['request']} {wait['tenant']}".strip(),
            _number(wait["wait_s"]),
            str(wait["prompt_tokens"]),
            wait["lacked"],
            str(wait["overtaken_by"]),
        )
        for wait in waits
    ]
    return _aligned(rows)


def _found(figures: Figures, path: Sequence[str]) -> str:
    value: Any = figures
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return _number(value)


def _number(value: float | None) -> str:
    if value is None:
        return _NOTHING
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.4g}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Names to the left, figures to the right of their columns."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if rank == 0 else cell.rjust(width)
            for rank, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
