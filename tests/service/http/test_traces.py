"""The trace context of an HTTP call reaches the span of its request."""

from __future__ import annotations

from cadenza.service.request_timer import Ended
from cadenza.service.tracing import Subject

from .conftest import OpenServed

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Kept:
    """Implements `Tracer`."""

    def __init__(self) -> None:
        self.ended: list[tuple[Subject, Ended]] = []

    def end(self, subject: Subject, ended: Ended) -> None:
        self.ended.append((subject, ended))

    def close(self) -> None: ...


def test_each_call_has_the_context_that_it_came_with(run, serve: OpenServed):
    async def main() -> None:
        tracer = Kept()
        async with serve(tracer=tracer) as served:
            body = {"prompt": ["x", "y"], "max_tokens": 2}
            headers = {"traceparent": TRACEPARENT}
            answer = await served.http.post("/v1/completions", json=body, headers=headers)
            await served.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})

            callers = [subject.caller.get("traceparent") for subject, _ in tracer.ended]
            assert callers == [TRACEPARENT, TRACEPARENT, None]
            call_id = answer.json()["id"].removeprefix("cmpl-")
            ids = {subject.id for subject, _ in tracer.ended[:2]}
            assert ids == {f"{call_id}-0", f"{call_id}-1"}
            assert {ended.reason for _, ended in tracer.ended} == {"length"}
            assert [ended.generated_tokens for _, ended in tracer.ended] == [2, 2, 2]

    run(main())


def test_a_request_that_is_refused_has_no_span(run, serve: OpenServed):
    async def main() -> None:
        tracer = Kept()
        async with serve(tracer=tracer) as served:
            await served.http.post("/v1/completions", json={"prompt": "x", "n": 0})
            assert tracer.ended == []

    run(main())
