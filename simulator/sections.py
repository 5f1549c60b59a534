"""What a report says in tables, whatever draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Figures = Mapping[str, Any]
Row = tuple[str, ...]

_NOTHING = "-"
_UNNAMED = "(none)"
_MOST_WAITS, _MOST_TENANTS = 5, 10
_HARDLY = 0.001  # share of a figure that nobody would notice, however sure it is


class Section(NamedTuple):
    """A table; names stand in its first column, figures in the others."""

    head: Row  # of its columns, the first of them what all of it is about
    rows: Sequence[Row]
    note: str = ""


def sections(report: Figures) -> list[Section]:
    """A column a profile, then what each of them changes, and for whom."""
    found = [_profiles(report)]
    found += [_comparison(each) for each in report["comparisons"]]
    found += [_tenants(report), *(_waits(each) for each in report["profiles"])]
    return [section for section in found if section.rows]


def heading(report: Figures) -> list[str]:
    """What was tried, and on what, in lines."""
    trace, limits, machine = report["trace"], report["limits"], report["machine"]
    notes = "".join(f"; {note}" for note in trace["notes"])
    return [
        f"{trace['source']} ({trace['kind']}{notes})",
        f"{trace['requests']} requests in {_number(trace['span_s'])} s, of "
        f"{_number(trace['mean_prompt_tokens'])} and {_number(trace['mean_output_tokens'])} "
        f"tokens, {trace['tenants']} tenants{_repeated(report)}",
        f"{machine['name']} ({machine['source']})",
        f"{limits['num_blocks']} blocks of {limits['block_size']} tokens, "
        f"{limits['num_host_blocks']} on the host, {limits['max_num_seqs']} seats, "
        f"{limits['max_num_batched_tokens']} tokens a step",
    ]


def _repeated(report: Figures) -> str:
    """How often all of it was replayed, and of which part figures are."""
    said = f"; with each of {report['seeds']} seeds" if report["seeds"] > 1 else ""
    if report["measured"] is not None:
        begin_s, end_s = report["measured"]
        until = "the end" if end_s is None else f"{_number(end_s)} s"
        said += f"; measured from {_number(begin_s)} s to {until}"
    return said


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
    ("preemptions", ("preemptions", "all")),
    ("preempted, recomputed", ("preemptions", "recomputed")),
    ("preempted, swapped", ("preemptions", "swapped")),
    ("tokens recomputed", ("preemptions", "recomputed_tokens")),
    ("tokens swapped", ("preemptions", "swapped_tokens")),
    ("Jain index of service", ("fairness", "jain")),
    ("requests whole", ("whole",)),
)


def _profiles(report: Figures) -> Section:
    """A column a profile, and one of what was recorded, where the trace says that."""
    columns = [(each["profile"], each) for each in report["profiles"]]
    if report["recorded"] is not None:
        columns.insert(0, ("recorded", report["recorded"]))
    rows = [(name, *(_found(figures, path) for _, figures in columns)) for name, path in _ROWS]
    return Section(("profile", *(name for name, _ in columns)), rows)


def _comparison(compared: Figures) -> Section:
    """Differences with their intervals."""
    base, other = compared["base"], compared["other"]
    drawn = f"95 % over {compared['drawn']}"
    head = (f"{other} against {base}", base, other, "difference", drawn, "")
    rows: list[Row] = []
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
            figures = (_number(change[each]) for each in ("base", "other", "difference"))
            rows.append((name, *figures, interval, _judged(change)))
    before, after = (f"{100 * (share or 0):.1f} %" for share in compared["queued_share"])
    rows.append(("time with a queue", before, after, "", "", ""))
    return Section(head, rows, _by_request(compared))


def _judged(change: Figures) -> str:
    if abs(change["difference"]) < _HARDLY * abs(change["base"]) or not change["difference"]:
        return "hardly any"
    return "" if change["is_clear"] else "may be chance"


def _by_request(compared: Figures) -> str:
    """How many gain and lose, who loses most, and whether there was anything to decide."""
    requests, lost = compared["requests"], compared["requests"]["lost_most"][:1]
    said = (
        f"{requests['earlier']} of {requests['compared']} requests end more than 5 % earlier, "
        f"{requests['later']} later"
    )
    for each in lost:
        said += (
            f"; request {each['request']} {each['tenant']}".rstrip()
            + f" loses most, {_number(each['base_e2e_s'])} s become {_number(each['other_e2e_s'])}"
        )
    if compared["ties_because_nothing_queued"]:
        said += "; they tie because nothing queued"
    return said


def _tenants(report: Figures) -> Section:
    """Times to the first token of the largest tenants."""
    first = report["profiles"][0]["fairness"]["tenants"][:_MOST_TENANTS]
    names = [each["tenant"] for each in first]
    head = ("tenant", "requests", *(f"TTFT p99, {each['profile']}" for each in report["profiles"]))
    rows: list[Row] = []
    found = [
        {each["tenant"]: each for each in profile["fairness"]["tenants"]}
        for profile in report["profiles"]
    ]
    for rank, name in enumerate(names):
        figures = (_number(each[name]["p99_ttft_s"]) for each in found)
        rows.append((name or _UNNAMED, str(first[rank]["requests"]), *figures))
    return Section(head, rows)


def _waits(profile: Figures) -> Section:
    """Who waited longest, and for what."""
    waits: Sequence[Figures] = profile["longest_waits"][:_MOST_WAITS]
    head = (f"longest waits, {profile['profile']}", "s", "tokens", "for want of", "overtaken by")
    rows = [
        (
            f"request {wait['request']} {wait['tenant']}".strip(),
            _number(wait["wait_s"]),
            str(wait["prompt_tokens"]),
            wait["lacked"],
            str(wait["overtaken_by"]),
        )
        for wait in waits
    ]
    return Section(head, rows)


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
