"""The service as a stranger meets it: a process, two ports, and clients nobody here wrote."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from openai import OpenAI

from tests.e2e.conftest import Serve
from tests.e2e.servers import COMMAND, Served

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
LONG_ENOUGH = 40  # tokens for an answer: a model that misses the end would go on to its last
STORY = [{"role": "user", "content": "Tell me a story about a dragon, with emoji 🐉 and 漢字."}]


@pytest.fixture(scope="module")
def openai(server: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.http}/v1", api_key="none", max_retries=0) as client:
        yield client


def stream_text(client: OpenAI, **arguments: Any) -> str:
    with client.chat.completions.create(model=model(client), stream=True, **arguments) as chunks:
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def model(client: OpenAI) -> str:
    return client.models.list().data[0].id


def gauges(server: Served) -> dict[str, float]:
    """Metrics without labels other than the model's."""
    lines = httpx.get(f"{server.http}/metrics").text.splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.split("{")[0]: float(value) for name, value in samples if name.count("=") <= 1}


def until(server: Served, condition: Callable[[dict[str, float]], bool]) -> None:
    """Scrape until the gauges fulfil a condition. A scrape is a round trip: no sleep is needed."""
    for _ in range(20_000):
        if condition(gauges(server)):
            return
    raise AssertionError(f"it never came true: {gauges(server)}")


def is_idle(now: dict[str, float]) -> bool:
    busy = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return all(now[f"cadenza:{name}"] == 0 for name in busy)


def test_the_capital_of_france_streams_over_http(openai: OpenAI):
    text = stream_text(openai, messages=FRANCE, temperature=0, max_tokens=LONG_ENOUGH)

    assert "Paris" in text


def test_an_operator_counts_tokens_looks_at_a_request_and_empties_the_cache(server: Served):
    """In one test, since what is cached depends on what was asked before."""
    body = {"messages": STORY, "max_tokens": 2, "cache_salt": "operator"}
    with httpx.Client(base_url=server.http) as http:
        counted = http.post("/tokenize", json=body).json()
        assert http.post("/detokenize", json=counted).json()["prompt"].startswith("<|im_start|>")

        def ask() -> dict[str, Any]:
            answer = http.post("/v1/chat/completions", json=body).json()
            return {**answer["usage"], "id": answer["id"]}

        first, second = ask(), ask()
        assert first["prompt_tokens"] == counted["count"]
        assert first["prompt_tokens_details"] == {"cached_tokens": 0}
        assert second["prompt_tokens_details"]["cached_tokens"] > 0
        assert http.post("/reset_prefix_cache").status_code == 200
        assert ask()["prompt_tokens_details"] == {"cached_tokens": 0}

        status = http.get(f"/v1/requests/{second['id']}").json()
        assert status["cached_tokens"] == second["prompt_tokens_details"]["cached_tokens"]
        assert [choice["generated_tokens"] for choice in status["choices"]] == [2]
        records = http.get(f"/v1/requests/{second['id']}/timeline").json()["records"]
        assert [record["kind"] for record in records] == ["arrived", "admitted", "finished"]
        assert records[-1]["facts"] == {"reason": "length", "generated_tokens": 2}


def test_connections_of_both_protocols_are_counted(server: Served):
    with grpc.insecure_channel(server.grpc) as channel:
        grpc.channel_ready_future(channel).result(60)
        text = httpx.get(f"{server.http}/metrics").text

    found = re.findall(r'cadenza:connections\{.*protocol="(\w+)"\} ([1-9]\d*)\.0', text)
    assert [protocol for protocol, _ in found] == ["http", "grpc"]


def test_joined_deltas_are_the_whole_answer(openai: OpenAI):
    """Sampled with a seed, over emoji and characters of several tokens, with a stop string."""
    arguments: dict[str, Any] = {
        "messages": STORY,
        "temperature": 1.0,
        "seed": 11,
        "max_tokens": 80,
        "stop": ["dragon was", "\n\n\n"],
    }
    whole = openai.chat.completions.create(model=model(openai), **arguments)

    assert stream_text(openai, **arguments) == whole.choices[0].message.content
    assert whole.usage is not None
    assert whole.usage.completion_tokens > 1


class ReflectedSession:
    """A client of `Session` made of nothing but what the server's reflection says."""

    def __init__(self, channel: grpc.Channel) -> None:
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        service = pool.FindServiceByName("cadenza.v1.GenerationService")
        method = service.FindMethodByName("Session")
        self.request_class = GetMessageClass(method.input_type)
        response_class = GetMessageClass(method.output_type)
        self.call: Callable[[Iterator[Any]], Iterator[Any]] = channel.stream_stream(
            f"/{service.full_name}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response_class.FromString,
        )

    def submit(self, request_id: str, **fields: Any) -> Any:
        return self.request_class(submit={"request_id": request_id, **fields})


def test_the_capital_of_france_streams_over_a_reflected_session(server: Served):
    with grpc.insecure_channel(server.grpc) as channel:
        session = ReflectedSession(channel)
        chat = {"messages": [{"role": "user", "content": FRANCE[0]["content"]}]}
        request = session.submit(
            "q", input={"chat": chat, "temperature": 0.0, "max_tokens": LONG_ENOUGH}
        )
        events = [event for response in session.call(iter([request])) for event in response.events]

    assert {event.request_id for event in events} == {"q"}
    text = "".join(event.tokens.text for event in events if event.HasField("tokens"))
    assert "Paris" in text
    assert events[-1].HasField("finished")


def test_http_and_grpc_give_the_same_text(openai: OpenAI, server: Served):
    prompt, tokens = "The sky is blue because", 40
    whole = openai.completions.create(
        model=model(openai), prompt=prompt, max_tokens=tokens, temperature=0
    )
    with grpc.insecure_channel(server.grpc) as channel:
        session = ReflectedSession(channel)
        request = session.submit(
            "q", input={"text": prompt, "max_tokens": tokens, "temperature": 0.0}
        )
        events = [event for response in session.call(iter([request])) for event in response.events]

    assert text_of(events) == whole.choices[0].text


def test_a_reader_that_takes_a_few_tokens_at_a_time_gets_the_same_text(server: Served):
    """Its request is parked whenever its credit is used up, and loses nothing."""
    generation = {"text": "The sky is blue because", "max_tokens": 12, "temperature": 0.0}
    actions: queue.Queue[Any] = queue.Queue()
    with grpc.insecure_channel(server.grpc) as channel:
        session = ReflectedSession(channel)
        free = [
            event
            for response in session.call(iter([session.submit("free", input=generation)]))
            for event in response.events
        ]
        actions.put(session.submit("q", input=generation, credit=4))
        events, granted = [], 4
        for response in session.call(iter(actions.get, None)):
            events += response.events
            for event in response.events:
                if event.HasField("notice") and event.notice.HasField("parked"):
                    taken = sum(len(each.tokens.token_ids) for each in events)
                    assert taken <= granted
                    granted += 4
                    credit = {"request_id": "q", "tokens": 4}
                    actions.put(session.request_class(credit=credit))
                elif event.HasField("finished"):
                    actions.put(None)

    assert granted == 12
    assert text_of(events) == text_of(free)
    assert events[-1].HasField("finished")


def text_of(events: list[Any]) -> str:
    return "".join(event.tokens.text for event in events if event.HasField("tokens"))


def test_a_sessions_request_ends_when_its_time_is_over(server: Served):
    """What has come by then stays; more time, asked for in time, is given."""
    generation = {"text": "Once", "max_tokens": 1500, "ignore_eos": True}
    actions: queue.Queue[Any] = queue.Queue()
    with grpc.insecure_channel(server.grpc) as channel:
        session = ReflectedSession(channel)
        actions.put(session.submit("q", input=generation, timeout={"seconds": 600}))
        events = []
        for response in session.call(iter(actions.get, None)):
            if not any(event.HasField("tokens") for event in events):
                deadline = {"request_id": "q", "timeout": {"nanos": 1}}
                actions.put(session.request_class(set_deadline=deadline))
            events += response.events
            if events[-1].HasField("failed"):
                actions.put(None)

    assert events[-1].failed.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
    until(server, is_idle)


def post(server: Served, **body: Any) -> socket.socket:
    """A completion request on a connection of its own; nothing of the answer is read."""
    host, port = server.http.removeprefix("http://").split(":")
    content = json.dumps({"prompt": "Once", "max_tokens": 1500, "ignore_eos": True, **body})
    connection = socket.create_connection((host, int(port)))
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    connection.sendall((head + content).encode())
    return connection


def test_what_clients_leave_behind_is_freed(server: Served):
    """Connections closed in mid-stream, in mid-answer and in the queue, and a cancelled RPC."""
    connections = [post(server, stream=index % 2 == 0) for index in range(40)]
    connections[0].recv(1)
    until(server, lambda now: now["cadenza:num_requests_waiting"] > 0)
    for connection in connections:
        connection.close()
    with grpc.insecure_channel(server.grpc) as channel:
        session = ReflectedSession(channel)
        generation = {"text": "Once", "max_tokens": 1500, "ignore_eos": True}
        call = session.call(iter([session.submit("q", input=generation)]))
        next(call)
        call.cancel()  # type: ignore[attr-defined]

    until(server, is_idle)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"temperature": -1}, 400, "temperature"),
        ({"max_tokens": 100_000}, 400, "max_tokens"),
        ({"prompt": "word " * 4000}, 400, "prompt"),
        ({"model": "gpt-4"}, 404, "model"),
    ],
)
def test_a_wrong_field_is_named_in_both_modes(
    server: Served, fields: dict[str, Any], status: int, param: str, stream: bool
):
    body = {"prompt": "x", "stream": stream, **fields}

    response = httpx.post(f"{server.http}/v1/completions", json=body)

    assert response.status_code == status
    assert response.json()["error"]["param"] == param


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def assert_one_plain_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr


def test_an_unknown_flag_is_told_in_one_line():
    assert_one_plain_line(command("serve", "demo", "--bogus"), "--bogus")


def test_a_missing_model_is_told_in_one_line():
    assert_one_plain_line(command("serve", "/no/such.gguf"), "/no/such.gguf")


def test_a_broken_model_is_told_in_one_line(tmp_path: Path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))

    assert_one_plain_line(command("serve", str(broken)), "broken.gguf")


@pytest.mark.extra  # tests/cli tells it to the command in its own process
def test_an_unknown_policy_is_told_in_one_line():
    done = command("serve", "demo", "--policy", "order_admissions=lifo")

    assert_one_plain_line(done, "lifo", "fcfs")


@pytest.mark.extra  # tests/cli tells it to the command in its own process
def test_a_public_address_needs_a_flag():
    done = command("serve", "demo", "--host", "0.0.0.0")

    assert_one_plain_line(done, "--allow-unauthenticated")


def test_a_setting_that_the_engine_refuses_is_told_in_one_line():
    done = command(
        "serve", "demo", "--port", "0", "--grpc-port", "0", "--kv-cache-memory-bytes", "1"
    )

    assert_one_plain_line(done, "kv_cache_bytes is 1, but")


@pytest.mark.parametrize("flag", ["--port", "--grpc-port"])
def test_a_port_in_use_is_told_in_one_line(flag: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        other = "--grpc-port" if flag == "--port" else "--port"

        done = command("serve", "demo", flag, port, other, "0")

    assert_one_plain_line(done, port, "in use")


def test_help_names_the_commands_and_their_flags():
    assert "serve" in command("--help").stdout
    assert "--max-num-seqs" in command("serve", "--help").stdout


def stream_lines(url: str, max_tokens: int) -> Iterator[Any]:
    body = {
        "prompt": "Once",
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if line:
                data = line.removeprefix("data: ")
                yield data if data == "[DONE]" else json.loads(data)


def test_a_signal_lets_requests_in_flight_end(serve: Serve):
    """One that is told over HTTP, and one over gRPC that has no credit before the signal.

    The latter's Session stays open, and is told that the server stops once nobody is in flight.
    """
    running = serve("--max-model-len", "512", "--shutdown-timeout", "100")
    lines = stream_lines(running.http, max_tokens=8)
    received = [next(lines)]
    generation = {"text": "Once", "max_tokens": 4, "ignore_eos": True}
    actions: queue.Queue[Any] = queue.Queue()
    events: list[Any] = []
    with grpc.insecure_channel(running.grpc) as channel:
        session = ReflectedSession(channel)

        def stop_once_parked() -> None:
            for response in session.call(iter(actions.get, None)):
                events.extend(response.events)
                if any(event.notice.HasField("parked") for event in response.events):
                    running.process.send_signal(signal.SIGTERM)
                    wait_until_not_serving(channel)
                    actions.put(session.request_class(credit={"request_id": "q", "tokens": 2}))

        actions.put(session.submit("q", input=generation, credit=2))
        with pytest.raises(grpc.RpcError) as ended:
            stop_once_parked()
        actions.put(None)
    received += lines

    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
    assert events[-1].finished.usage.completion_tokens == 4
    assert received[-1] == "[DONE]"
    assert received[-2]["usage"]["completion_tokens"] == 8
    assert running.process.wait(30) == 0


def wait_until_not_serving(channel: grpc.Channel) -> None:
    states = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    for state in states:
        if state.status == health_pb2.HealthCheckResponse.NOT_SERVING:
            states.cancel()
            return
    raise AssertionError("it never said so")


def test_a_second_signal_ends_them_with_an_error_event(serve: Serve):
    running = serve("--max-model-len", "2048")
    lines = stream_lines(running.http, max_tokens=2000)
    received = [next(lines)]

    running.process.send_signal(signal.SIGINT)
    received.append(next(lines))
    running.process.send_signal(signal.SIGINT)
    received += lines

    assert isinstance(received[-1], dict)
    assert "shutting down" in received[-1]["error"]["message"]
    assert running.process.wait(30) == 0


def test_one_death_of_the_engine_too_many_ends_streams_with_an_error_event_and_the_service(
    serve: Serve,
):
    running = serve("--max-model-len", "2048", "--max-engine-restarts", "0")
    lines = stream_lines(running.http, max_tokens=2000)
    received = [next(lines)]

    os.kill(running.engine_pid, signal.SIGKILL)
    received += lines

    assert isinstance(received[-1], dict)
    assert "gives up" in received[-1]["error"]["message"]
    assert received[-1]["error"]["code"] == "engine_unavailable"
    assert running.process.wait(30) == 1
