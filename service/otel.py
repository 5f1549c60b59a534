"""Traces over OTLP. OpenTelemetry is imported here only; it comes with the extra `otel`.

One span a request, made when that has ended, with the attributes of OpenTelemetry's conventions for
generative AI and those that vLLM has besides. Their names are constants of our own, since those of
OpenTelemetry's packages move. Neither prompts nor answers are ever among them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cadenza.service.request_timer import Ended
from cadenza.service.tracing import Subject

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.util.types import AttributeValue

_EXPORT_S = 3.0  # for one batch
_CLOSE_S = 3.0  # for all that is left at the end
_NS = 1_000_000_000


def is_installed() -> bool:
    """Whether traces can be sent."""
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


class OtelTracer:
    """Implements `Tracer`. Spans are sent by a thread; what it cannot keep up with is dropped."""

    def __init__(self, processor: SpanProcessor) -> None:
        """Give every span to `processor`, whose end is `close`."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create()  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES among it
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "cadenza"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("cadenza")
        self._propagator = TraceContextTextMapPropagator()

    def end(self, subject: Subject, ended: Ended) -> None:
        from opentelemetry.trace import SpanKind, StatusCode

        unix_ns = time.time_ns() - time.monotonic_ns()  # of the monotonic clock's beginning
        span = self._tracer.start_span(
            f"{subject.operation} {subject.model}",
            context=self._propagator.extract(dict(subject.caller)),
            kind=SpanKind.SERVER,
            attributes=dict(_attributes(subject, ended)),
            start_time=unix_ns + int(ended.arrived_s * _NS),
        )
        if ended.reason not in ("stop", "length", "abort"):
            span.set_status(StatusCode.ERROR)
            span.set_attribute("error.type", ended.reason)
        span.end(unix_ns + int(ended.ended_s * _NS))

    def close(self) -> None:
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_S)


def open_tracer(endpoint: str) -> OtelTracer:
    """Send spans to an OTLP endpoint, by HTTP with protobuf."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_S)
    return OtelTracer(BatchSpanProcessor(exporter))


def _attributes(subject: Subject, ended: Ended) -> Iterator[tuple[str, AttributeValue]]:
    sampling = subject.sampling
    yield "gen_ai.operation.name", subject.operation
    yield "gen_ai.provider.name", "cadenza"
    yield "gen_ai.request.model", subject.model
    yield "gen_ai.response.model", subject.model
    yield "gen_ai.request.id", subject.id
    yield "gen_ai.response.id", subject.id
    yield "gen_ai.request.max_tokens", ended.max_tokens
    yield "gen_ai.request.temperature", sampling.temperature
    yield "gen_ai.request.top_p", sampling.top_p
    yield "gen_ai.request.top_k", sampling.top_k
    yield "gen_ai.request.presence_penalty", sampling.presence_penalty
    yield "gen_ai.request.frequency_penalty", sampling.frequency_penalty
    yield "gen_ai.request.choice.count", ended.n
    yield "gen_ai.response.finish_reasons", (ended.reason,)
    for ours, vllms, count in (
        ("input_tokens", "prompt_tokens", ended.prompt_tokens),
        ("output_tokens", "completion_tokens", ended.generated_tokens),
    ):
        yield f"gen_ai.usage.{ours}", count
        yield f"gen_ai.usage.{vllms}", count
    yield "gen_ai.usage.cache_read.input_tokens", ended.cached_tokens
    yield "cadenza.preemptions", ended.preemptions
    yield from _latencies(ended)


def _latencies(ended: Ended) -> Iterator[tuple[str, AttributeValue]]:
    """In seconds; what the request never came to is left out."""
    yield "gen_ai.latency.e2e", ended.ended_s - ended.arrived_s
    if ended.seated_s is not None:
        yield "gen_ai.latency.time_in_queue", ended.seated_s - ended.arrived_s
    if ended.first_s is None or ended.last_s is None:
        return
    yield "gen_ai.response.time_to_first_chunk", ended.first_s - ended.arrived_s
    yield "gen_ai.latency.time_to_first_token", ended.first_s - ended.arrived_s
    yield "gen_ai.latency.time_in_model_decode", ended.last_s - ended.first_s
    if ended.seated_s is not None:
        yield "gen_ai.latency.time_in_model_prefill", ended.first_s - ended.seated_s
        yield "gen_ai.latency.time_in_model_inference", ended.last_s - ended.seated_s
