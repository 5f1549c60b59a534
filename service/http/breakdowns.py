"""Metrics by policy, by tenant, and by HTTP route."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cadenza.policies.profile import GATE, GUARD
from cadenza.service.generator import Generator
from cadenza.service.http.family import Family
from cadenza.service.http.traffic import Traffic
from cadenza.service.metrics import Metrics


def policies(generator: Generator) -> Iterator[Family]:
    """What each policy decides, what that costs, and how it fares.

    Each process has instances of its own: a policy shows as quarantined if it is in either.
    """
    engine, front = generator.engine, generator.policies
    profile = front.profile
    decides: dict[str, Sequence[str]] = {hook: (name,) for hook, name in profile.names.items()}
    decides |= {GUARD: profile.guards, GATE: profile.gates}
    yield Family(
        name="policy_active",
        kind="gauge",
        text="1 for each policy that decides.",
        labels=("hook", "policy"),
        samples=[((hook, policy), 1) for hook, each in decides.items() for policy in each],
    )
    uses = [*engine.totals.hook_uses, *front.uses]
    counted = (
        ("policy_calls", "calls", "Times a policy was asked."),
        ("policy_seconds", "spent_s", "Time that this took."),
        ("policy_passed_over", "passed_over", "Times a policy was to be asked and was not."),
        ("policy_excused", "excused", "Calls of a policy that were interrupted without its fault."),
    )
    for name, field, text in counted:
        yield Family(
            name=name,
            kind="counter",
            text=text,
            labels=("policy", "hook"),
            samples=[((use.policy, use.hook), getattr(use, field)) for use in uses],
        )
    # those that never failed do not show
    faults = [(c.policy, c.hook, c.faults, c.quarantined) for c in engine.totals.policy_faults]
    faults += [(c.policy, c.hook, c.faults, c.quarantined) for c in front.faults]
    yield Family(
        name="policy_faults_by_hook",
        kind="counter",
        text="Decisions that a policy failed to take, by policy and hook.",
        labels=("policy", "hook"),
        samples=[((policy, hook), count) for policy, hook, count, _ in faults],
    )
    out = {policy for policy, _, _, quarantined in faults if quarantined}
    yield Family(
        name="policy_quarantined",
        kind="gauge",
        text="1 while a policy that failed too often is not asked.",
        labels=("policy",),
        samples=[
            ((policy,), policy in out) for policy in dict.fromkeys(policy for policy, *_ in faults)
        ],
    )


def tenants(metrics: Metrics) -> Iterator[Family]:
    by_name = metrics.tenants.items()
    for name, text, values in (
        (
            "tenant_prompt_tokens",
            "Prompt tokens of accepted requests, by tenant.",
            [((name,), tenant.prompt_tokens) for name, tenant in by_name],
        ),
        (
            "tenant_generation_tokens",
            "Tokens generated, by tenant.",
            [((name,), tenant.generation_tokens) for name, tenant in by_name],
        ),
        (
            "tenant_rejections",
            "Calls refused, by tenant.",
            [((name,), tenant.refused) for name, tenant in by_name],
        ),
    ):
        yield Family(name=name, kind="counter", text=text, labels=("tenant",), samples=values)
    yield Family(
        name="tenant_requests",
        kind="counter",
        text="Requests ended, by tenant and how.",
        labels=("tenant", "finished_reason"),
        samples=[
            ((name, reason), count)
            for name, tenant in by_name
            for reason, count in tenant.finished.items()
        ],
    )
    yield Family(
        name="tenant_time_to_first_token_seconds",
        kind="histogram",
        text="Arrival to first token, by tenant.",
        labels=("tenant",),
        histograms=[((name,), tenant.time_to_first_token) for name, tenant in by_name],
    )
    yield Family(
        name="tenant_queue_time_seconds",
        kind="histogram",
        text="Arrival to first seat, by tenant.",
        labels=("tenant",),
        histograms=[((name,), tenant.queue_time) for name, tenant in by_name],
    )


def streams(generator: Generator) -> Iterator[Family]:
    """What became of streams that can be resumed."""
    metrics = generator.metrics
    yield Family(
        name="streams_waiting",
        kind="gauge",
        text="Resumable streams that nobody reads, though something is left or to come.",
        samples=[((), generator.resumption.num_waiting)],
    )
    for name, text, label, counts in (
        (
            "streams_resumed",
            "Times a client went on with a stream.",
            "protocol",
            metrics.streams_resumed,
        ),
        (
            "streams_expired",
            "Streams that nobody went on with in time, by whether they still ran.",
            "state",
            metrics.streams_expired,
        ),
        (
            "stream_resumptions_refused",
            "Resumptions refused, by why.",
            "reason",
            metrics.resumptions_refused,
        ),
    ):
        yield Family(
            name=name,
            kind="counter",
            text=text,
            labels=(label,),
            samples=[((value,), count) for value, count in counts.items()],
        )


def open_connections(by_protocol: Mapping[str, int | None]) -> Iterator[Family]:
    yield Family(
        name="connections",
        kind="gauge",
        text="Connections that clients have open, idle ones as well.",
        labels=("protocol",),
        samples=[
            ((protocol,), count) for protocol, count in by_protocol.items() if count is not None
        ],
    )


def http(traffic: Traffic) -> Iterator[Family]:
    yield Family(
        name="http_requests",
        kind="counter",
        text="HTTP answers.",
        labels=("route", "method", "status"),
        samples=[(answered, count) for answered, count in traffic.answers.items()],
    )
    yield Family(
        name="http_request_duration_seconds",
        kind="histogram",
        text="From a request's head to the end of its answer.",
        labels=("route",),
        histograms=[((route,), histogram) for route, histogram in traffic.durations.items()],
    )
