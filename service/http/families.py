"""Every metric that there is, with its value now: of engine and front as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cadenza.service.generator import Generator
from cadenza.service.http.breakdowns import http, open_connections, policies, streams, tenants
from cadenza.service.http.family import Family, Kind
from cadenza.service.http.traffic import Traffic
from cadenza.service.metrics import Metrics


def families(
    generator: Generator, traffic: Traffic, connections: Mapping[str, int | None]
) -> Iterator[Family]:
    """All of them, at this moment. `connections` are by protocol."""
    yield from _state(generator)
    yield from _engine_totals(generator)
    yield from _front_totals(generator)
    yield from _histograms(generator.metrics)
    yield from policies(generator)
    yield from tenants(generator.metrics)
    yield from streams(generator)
    yield from open_connections(connections)
    yield from http(traffic)


def _state(generator: Generator) -> Iterator[Family]:
    """What the engine says, not what the front believes: a row that only the front forgot shows.

    A dead engine says nothing more, and holds nothing.
    """
    engine = generator.engine
    counters, limits = engine.counters, engine.limits
    alive = engine.failure is None
    held = counters.total_blocks - counters.free_blocks - counters.cached_blocks
    held_by_host = counters.total_host_blocks - counters.free_host_blocks
    for name, text, value, is_vllms in (
        ("num_requests_running", "Rows with a seat.", counters.running, True),
        ("num_requests_waiting", "Rows without one.", counters.waiting, True),
        ("num_requests_parked", "Rows whose reader takes no tokens now.", counters.parked, False),
        (
            "num_requests_swapped",
            "Preempted rows with a copy on the host.",
            counters.swapped,
            False,
        ),
        ("num_requests_queued", "Choices that wait for a first seat.", generator.num_queued, False),
        (
            "kv_cache_usage_perc",
            "Share of KV blocks held, 0 to 1.",
            _share(held, counters.total_blocks),
            True,
        ),
        ("num_free_blocks", "KV blocks that hold nothing.", counters.free_blocks, False),
        (
            "num_cached_blocks",
            "KV blocks held by nobody, but cached.",
            counters.cached_blocks,
            False,
        ),
        (
            "host_kv_cache_usage_perc",
            "Share of host blocks held, 0 to 1.",
            _share(held_by_host, counters.total_host_blocks),
            False,
        ),
        ("num_host_blocks_used", "Host blocks that hold a copy.", held_by_host, False),
        (
            "num_host_blocks",
            "Host blocks for preempted rows.",
            limits.num_host_blocks if limits else 0,  # known before there is a step
            False,
        ),
    ):
        yield _single("gauge", name, text, alive * value, is_vllms)
    yield Family(
        name="num_requests_waiting_by_reason",
        kind="gauge",
        text="Rows without a seat, by what they wait for: capacity always, here.",
        labels=("reason",),
        samples=[(("capacity",), alive * counters.waiting), (("deferred",), 0)],
        is_vllms=True,
    )
    facts = (str(limits.block_size), str(limits.num_blocks), limits.dtype) if limits else ()
    yield Family(
        name="cache_config_info",
        kind="gauge",
        text="How the KV cache is laid out, in labels.",
        labels=("block_size", "num_gpu_blocks", "cache_dtype"),
        samples=[(facts, 1)] if facts else [],
        is_vllms=True,
    )
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_host_blocks")
    yield Family(
        name="scheduler_limits_info",
        kind="gauge",
        text="Limits in force, in labels: of running rows, and in tokens and blocks.",
        labels=names,
        samples=[(tuple(str(getattr(limits, name)) for name in names), 1)] if limits else [],
    )


def _engine_totals(generator: Generator) -> Iterator[Family]:
    counters, policies = generator.engine.counters, generator.policies
    front_faults = sum(count.faults for count in policies.faults)
    for name, text, value, is_vllms in (
        ("num_preemptions", "Times a row lost its seat.", counters.preemptions, True),
        (
            "prefix_cache_queries",
            "Tokens looked up in the prefix cache.",
            counters.prefix_queries,
            True,
        ),
        ("prefix_cache_hits", "Tokens found there.", counters.prefix_hits, True),
        ("steps", "Steps of the scheduler.", counters.steps, False),
        ("computed_tokens", "Tokens that the model computed.", counters.computed_tokens, False),
        (
            "recomputed_tokens",
            "Tokens computed again after a preemption.",
            counters.recomputed_tokens,
            False,
        ),
        (
            "decisions_lost",
            "Records of decisions that the engine had no room for.",
            counters.decisions_lost,
            False,
        ),
        (
            "policy_faults",
            "Decisions that a policy failed to take: the default took them.",
            counters.policy_faults + front_faults,
            False,
        ),
        (
            "engine_restarts",
            "Engine processes started in place of one that was lost.",
            generator.metrics.engine_restarts,
            False,
        ),
        (
            "engine_pause_seconds",
            "Time in which there was no engine that served.",
            generator.metrics.engine_pause_s,
            False,
        ),
        (
            "timeline_records_dropped",
            "Records of decisions cut from the timelines of known generations.",
            generator.num_records_dropped,
            False,
        ),
    ):
        yield _single("counter", name, text, value, is_vllms)
    yield Family(
        name="num_preemptions_by_kind",
        kind="counter",
        text="Times a row lost its seat, by what became of its blocks.",
        labels=("kind",),
        samples=[
            (("swap",), counters.swaps),
            (("recompute",), counters.preemptions - counters.swaps),
        ],
    )


def _front_totals(generator: Generator) -> Iterator[Family]:
    metrics = generator.metrics
    for name, text, value in (
        ("prompt_tokens", "Prompt tokens of accepted requests.", metrics.prompt_tokens),
        ("generation_tokens", "Tokens generated.", metrics.generation_tokens),
        ("prompt_tokens_cached", "Prompt tokens found in the cache.", metrics.cached_tokens),
    ):
        yield _single("counter", name, text, value, True)
    yield Family(
        name="prompt_tokens_by_source",
        kind="counter",
        text="Prompt tokens of admitted requests, by where their keys and values come from.",
        labels=("source",),
        samples=[
            (("local_compute",), metrics.computed_prompt_tokens),
            (("local_cache_hit",), metrics.cached_tokens),
        ],
        is_vllms=True,
    )
    gates = dict.fromkeys(generator.policies.profile.gates, 0)
    yield Family(
        name="admission_rejections",
        kind="counter",
        # vLLM's reason for a full queue, `shed` for who made room for another, or the gate
        text="Calls refused, by what refused them.",
        labels=("reason",),
        samples=[((reason,), count) for reason, count in (gates | metrics.refused).items()],
        is_vllms=True,
    )
    yield Family(
        name="request_success",
        kind="counter",
        text="Requests ended, by how.",
        labels=("finished_reason",),
        samples=[((reason,), count) for reason, count in metrics.finished.items()],
        is_vllms=True,
    )
    yield Family(
        name="decisions",
        kind="counter",
        text="Decisions of the scheduler about single rows, by kind.",
        labels=("kind",),
        samples=[((kind,), count) for kind, count in metrics.decisions.items()],
    )


def _histograms(metrics: Metrics) -> Iterator[Family]:
    for name, text, histogram in (
        ("time_to_first_token_seconds", "Arrival to first token.", metrics.time_to_first_token),
        ("inter_token_latency_seconds", "Between tokens of a choice.", metrics.inter_token_latency),
        ("request_queue_time_seconds", "Arrival to first seat.", metrics.queue_time),
        ("iteration_tokens_total", "Tokens that a step computed.", metrics.iteration_tokens),
        ("e2e_request_latency_seconds", "Arrival to end.", metrics.request_latency),
        ("request_inference_time_seconds", "First seat to last token.", metrics.inference_time),
        ("request_prefill_time_seconds", "First seat to first token.", metrics.prefill_time),
        ("request_decode_time_seconds", "First to last token.", metrics.decode_time),
        (
            "request_time_per_output_token_seconds",
            "Mean time between the tokens of a request.",
            metrics.time_per_output_token,
        ),
        ("request_prompt_tokens", "Tokens of a prompt.", metrics.request_prompt_tokens),
        (
            "request_prefill_kv_computed_tokens",
            "Tokens of a prompt that were not cached.",
            metrics.request_computed_prompt_tokens,
        ),
        (
            "request_generation_tokens",
            "Tokens generated for a request.",
            metrics.request_generation_tokens,
        ),
        (
            "request_max_num_generation_tokens",
            "Tokens of a request's longest choice.",
            metrics.longest_choice,
        ),
        ("request_params_n", "Choices that a request wanted.", metrics.params_n),
        ("request_params_max_tokens", "Tokens that it allowed.", metrics.params_max_tokens),
        ("request_num_preemptions", "Times it lost a seat.", metrics.num_preemptions),
    ):
        yield Family(
            name=name, kind="histogram", text=text, histograms=[((), histogram)], is_vllms=True
        )


def _single(kind: Kind, name: str, text: str, value: float, is_vllms: bool) -> Family:
    return Family(name=name, kind=kind, text=text, samples=[((), value)], is_vllms=is_vllms)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
