"""Traces of requests, as OpenTelemetry's SDK keeps and sends them."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from cadenza.service import otel
from cadenza.service.otel import OtelTracer, open_tracer
from cadenza.service.request import GenerationRequest
from cadenza.service.request_timer import Ended
from cadenza.service.tracing import Subject, caller, remember_caller
from cadenza.wire.messages import Sampling

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "acme=1"}


class Kept:
    """A tracer, and the spans that it made."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracer = OtelTracer(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    @property
    def span(self) -> ReadableSpan:
        [span] = self.spans
        return span


@pytest.fixture
def kept() -> Iterator[Kept]:
    kept = Kept()
    yield kept
    kept.tracer.close()


def subject(**changes: Any) -> Subject:
    known = {"id": "abc", "operation": "chat", "model": "m", "sampling": Sampling(top_k=5)}
    return Subject(**{**known, "caller": CALLER, **changes})


def ended(**changes: Any) -> Ended:
    known = {
        "reason": "length",
        "arrived_s": 10.0,
        "seated_s": 11.0,
        "first_s": 13.0,
        "last_s": 17.0,
        "ended_s": 18.0,
        "prompt_tokens": 20,
        "cached_tokens": 16,
        "generated_tokens": 6,
        "n": 2,
        "max_tokens": 3,
        "preemptions": 1,
    }
    return Ended(**{**known, **changes})


def test_a_span_is_the_callers_child_with_the_conventions_attributes(kept: Kept):
    kept.tracer.end(subject(), ended())

    span = kept.span
    assert span.name == "chat m"
    assert span.kind is SpanKind.SERVER
    assert span.status.status_code is StatusCode.UNSET
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert span.context.trace_state.get("acme") == "1"
    assert (span.end_time - span.start_time) / 1e9 == pytest.approx(8.0, abs=1e-3)
    assert span.resource.attributes["service.name"] == "cadenza"
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "cadenza",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.request.id": "abc",
        "gen_ai.response.id": "abc",
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 5,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.choice.count": 2,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.prompt_tokens": 20,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.completion_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "cadenza.preemptions": 1,
        "gen_ai.latency.e2e": 8.0,
        "gen_ai.latency.time_in_queue": 1.0,
        "gen_ai.response.time_to_first_chunk": 3.0,
        "gen_ai.latency.time_to_first_token": 3.0,
        "gen_ai.latency.time_in_model_decode": 4.0,
        "gen_ai.latency.time_in_model_prefill": 2.0,
        "gen_ai.latency.time_in_model_inference": 6.0,
    }


@pytest.mark.parametrize("traceparent", ["", "00-zz", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_wrong_trace_context_begins_a_trace(kept: Kept, traceparent: str):
    kept.tracer.end(subject(caller={"traceparent": traceparent}), ended())

    assert kept.span.parent is None
    assert kept.span.context.trace_id != 0


def test_a_caller_that_samples_nothing_gets_no_span(kept: Kept):
    kept.tracer.end(subject(caller={"traceparent": f"00-{TRACE}-{PARENT}-00"}), ended())

    assert kept.spans == []


@pytest.mark.parametrize("reason", ["deadline", "shed", "error"])
def test_a_failure_is_an_error(kept: Kept, reason: str):
    never = {"seated_s": None, "first_s": None, "last_s": None}
    kept.tracer.end(subject(), ended(reason=reason, **never))

    span = kept.span
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == reason
    latencies = {name for name in span.attributes if name.startswith("gen_ai.latency.")}
    assert latencies == {"gen_ai.latency.e2e"}


def test_a_client_that_leaves_is_no_error(kept: Kept):
    kept.tracer.end(subject(), ended(reason="abort"))

    assert kept.span.status.status_code is StatusCode.UNSET


def test_the_environment_may_name_the_service(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    kept = Kept()
    kept.tracer.end(subject(), ended())

    assert kept.span.resource.attributes["service.name"] == "mine"


def test_only_the_trace_context_of_a_call_is_remembered(run):
    async def main() -> None:
        remember_caller([*CALLER.items(), ("cookie", "secret"), ("traceparent ", "x")])
        assert caller() == CALLER
        remember_caller([("traceparent", "x" * 1025)])
        assert caller() == {}

    run(main())


@pytest.mark.parametrize("chat", [True, False])
def test_every_request_of_a_generator_has_a_span(run, open_front, kept: Kept, chat: bool):
    async def main() -> None:
        async with open_front(tracer=kept.tracer) as front:
            remember_caller(CALLER.items())
            prompt = {"messages": [{"role": "user", "content": "secret"}]}
            request = GenerationRequest(
                **(prompt if chat else {"text": "secret"}), n=2, max_tokens=3, ignore_eos=True
            )
            generation = await front.generator.submit(request)
            async for _ in generation:
                pass

            span = kept.span
            assert span.name == ("chat tiny" if chat else "text_completion tiny")
            assert span.attributes["gen_ai.response.id"] == generation.id
            assert span.attributes["gen_ai.usage.output_tokens"] == 6
            assert f"{span.parent.span_id:016x}" == PARENT
            assert "secret" not in str(span.to_json())

    run(main())


class Collector:
    """An OTLP collector that keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        collector.spans += scope.spans
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def test_closing_sends_what_is_left():
    collector = Collector()
    tracer = open_tracer(collector.url)
    tracer.end(subject(), ended())
    tracer.close()
    collector.close()

    assert [span.name for span in collector.spans] == ["chat m"]


def test_without_its_packages_there_are_no_traces(monkeypatch: pytest.MonkeyPatch):
    assert otel.is_installed()

    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(otel, "find_spec", missing)
    assert not otel.is_installed()
