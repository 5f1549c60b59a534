"""Streams that are dropped and gone on with: each event once, whatever cut them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from cadenza.service.limits import Limits, ResumptionLimits
from cadenza.service.stream_log import StreamLog

from ..manual_timers import ManualTimers
from ..waiting import until
from .conftest import Served, request_bytes

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODY = {"prompt": "x", "stream": True, "stream_id": "s", "max_tokens": 64}
CHAT_BODY = {
    "messages": [{"role": "user", "content": "x"}],
    "stream": True,
    "stream_id": "s",
    "max_tokens": 64,
}


class Client:
    """Reads a stream and drops its connections."""

    def __init__(self, served: Served, path: str, body: dict[str, Any]) -> None:
        self.received = b""  # whole events only, over all connections
        self._served, self._path, self._body = served, path, body
        self._writer: asyncio.StreamWriter | None = None

    @property
    def events(self) -> list[bytes]:
        return self.received.split(b"\n\n")[:-1]

    @property
    def last_id(self) -> str | None:
        ids = [event.partition(b"\n")[0] for event in self.events]
        return ids[-1].removeprefix(b"id: ").decode() if ids else None

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.last_id is None else {"last-event-id": self.last_id}

    async def connect(self) -> asyncio.StreamReader:
        data = request_bytes(self._path, self._body)
        lines = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        data = data.replace(b"\r\n\r\n", f"\r\n{lines}\r\n".encode(), 1)
        reader, self._writer = await self._served.raw_bytes(data)
        return reader

    async def begin(self, num_steps: int, num_events: int | None = None) -> asyncio.StreamReader:
        """Let the engine make so many steps and then rest, and read as many events, or fewer."""
        front = self._served.front
        front.engine.auto = False
        reader = await self.connect()
        await front.engine.until(lambda: bool(front.engine.waiting))
        await front.step(num_steps)
        await self.read_events(reader, num_steps if num_events is None else num_events)
        return reader

    async def read_events(self, reader: asyncio.StreamReader, count: int) -> None:
        """Read so many events."""
        async with asyncio.timeout(10):
            while count:
                event = await reader.readuntil(b"\n\n")
                if (at := event.find(b"id: ")) >= 0:  # else the head
                    self.received += event[at:]
                    count -= 1

    def drop(self) -> None:
        assert self._writer is not None
        self._writer.transport.abort()

    async def leave(self) -> None:
        """Drop the connection, and wait until nobody reads the stream."""
        self.drop()
        await until(waiting(self._served))

    async def post(self) -> Any:
        return await self._served.http.post(self._path, json=self._body, headers=self.headers)

    async def get(self) -> Any:
        path = f"/v1/streams/{self._body['stream_id']}"
        return await self._served.http.get(path, headers=self.headers)


def waiting(served: Served, count: int = 1) -> Callable[[], bool]:
    return lambda: served.front.generator.resumption.num_waiting == count


def text_of(stream: str) -> str:
    """The texts of a completion's chunks, joined."""
    data = [event.partition("data: ")[2] for event in stream.split("\n\n")]
    chunks = [json.loads(each) for each in data if each.startswith("{")]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("way", ["post", "get"])
@pytest.mark.parametrize("num_events", [0, 1, 4, 11])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {**BODY, "logprobs": 2}),
        (CHAT, {**CHAT_BODY, "n": 3, "stream_options": {"include_usage": True}}),
    ],
)
def test_what_follows_a_drop_is_what_would_have_followed(
    run, serve, way: str, num_events: int, path: str, body: dict[str, Any]
):
    async def main():
        async with serve() as served:
            client = Client(served, path, body)
            await client.begin(num_events)
            await client.leave()
            served.front.engine.resume()
            response = await (client.post() if way == "post" else client.get())

            assert response.status_code == 200
            whole = (await served.http.get("/v1/streams/s")).text
            assert client.received.decode() + response.text == whole
            assert whole.count("[DONE]") == 1
            assert served.front.engine.cancels() == []
            await until(lambda: served.front.generator.is_idle)

    run(main())


def test_ids_are_numbers_and_the_tokens_of_each_choice(run, serve):
    async def main():
        async with serve() as served:
            served.front.says("ab")
            served.front.engine.auto = False
            answering = asyncio.create_task(served.http.post(CHAT, json={**CHAT_BODY, "n": 2}))
            await served.front.engine.until(lambda: len(served.front.engine.waiting) == 2)
            await served.front.step(3)
            text = (await answering).text
            ids = [line[4:] for line in text.splitlines() if line.startswith("id: ")]
            assert ids == [
                *("1:0.0", "2:1.0", "3:1.0", "4:1.1"),  # each choice's role, and its first token
                *("5:2.1", "6:2.2"),
                *("7:3.2", "8:3.3"),  # EOS has no text of its own
                "9:3.3",
            ]
            assert text.endswith("id: 9:3.3\ndata: [DONE]\n\n")

    run(main())


def test_streams_without_an_id_have_no_ids_and_end_with_their_readers(run, serve):
    async def main():
        async with serve() as served:
            body = {name: value for name, value in BODY.items() if name != "stream_id"}
            response = await served.http.post(COMPLETIONS, json=body)
            assert "id: " not in response.text
            client = Client(served, COMPLETIONS, body)
            await client.begin(0)
            client.drop()
            await served.front.engine.until(lambda: bool(served.front.engine.cancels()))

    run(main())


@pytest.mark.parametrize(
    ("said", "fields", "num_steps", "text"),
    [
        ("a👩b", {}, 3, "a👩b"),  # within the character's bytes
        ("abEN", {"stop": ["END"]}, 4, "abEN"),  # within text that is held back
        ("abENDab", {"stop": ["END"]}, 4, "ab"),
        ("ab👩", {"max_tokens": 4}, 3, "ab\ufffd"),  # which is never whole
    ],
)
def test_text_that_was_held_back_at_the_drop_comes_once(
    run, serve, said: str, fields: dict[str, Any], num_steps: int, text: str
):
    async def main():
        async with serve() as served:
            served.front.says(said)
            client = Client(served, COMPLETIONS, {**BODY, **fields})
            await client.begin(num_steps, num_events=1)
            await client.leave()
            served.front.engine.resume()
            whole = client.received.decode() + (await client.post()).text
            assert text_of(whole) == text
            assert whole.count("[DONE]") == 1

    run(main())


def test_a_stream_that_ended_unread_is_read_to_its_end_and_then_is_204(run, serve):
    async def main():
        timers = ManualTimers()
        async with serve(later=timers) as served:
            client = Client(served, COMPLETIONS, BODY)
            reader = await client.connect()
            await client.read_events(reader, 1)
            client.drop()
            await until(lambda: timers.num_waiting == 1)
            await until(served.front.is_clean)
            timers.advance(29)
            client.received += (await client.get()).content
            assert client.received.endswith(b"data: [DONE]\n\n")
            for response in (await client.get(), await client.post()):
                assert (response.status_code, response.content) == (204, b"")
            assert served.front.generator.is_idle
            await until(lambda: timers.num_waiting == 1)
            timers.advance(30)
            response = await client.get()
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "stream_not_found"

    run(main())


def test_a_stream_that_nobody_goes_on_with_is_cancelled_and_freed(run, serve):
    async def main():
        timers = ManualTimers()
        async with serve(later=timers) as served:
            client = Client(served, COMPLETIONS, {**BODY, "n": 2})
            await client.begin(0)
            client.drop()
            await until(lambda: timers.num_waiting == 1)
            assert not served.front.engine.cancels()
            timers.advance(30)
            await served.front.engine.until(lambda: len(served.front.engine.cancels()) == 2)
            assert served.front.is_clean()
            metrics = served.front.generator.metrics
            assert metrics.finished["abort"] == 1
            text = (await served.http.get("/metrics")).text
            assert 'cadenza:streams_expired_total{model_name="tiny",state="running"} 1' in text
            assert 'cadenza:streams_waiting{model_name="tiny"} 0' in text

    run(main())


def test_a_client_takes_over_its_own_connection_that_is_half_dead(run, serve):
    async def main():
        async with serve() as served:
            engine = served.front.engine
            client = Client(served, COMPLETIONS, BODY)
            reader = await client.begin(2)
            second = asyncio.create_task(client.post())
            old = await reader.readuntil(b"\r\n0\r\n\r\n")
            client.drop()
            assert json.loads(old.split(b"data: ")[1].split(b"\n\n")[0])["error"]["code"] == (
                "stream_taken_over"
            )
            assert b"[DONE]" not in old
            engine.resume()
            text = client.received.decode() + (await second).text
            assert text.count("[DONE]") == 1
            assert served.front.generator.metrics.streams_resumed["http"] == 1

    run(main())


@pytest.mark.parametrize(
    ("headers", "fields", "status", "words"),
    [
        ({"last-event-id": "99:1"}, {}, 400, "beyond event"),
        ({"last-event-id": "1:60"}, {}, 400, "none of this stream's"),
        ({"last-event-id": "x"}, {}, 400, "must be the id of an event"),
        ({"last-event-id": "1:1"}, {"max_tokens": 5}, 409, "that of another request"),
        ({}, {"max_tokens": 5}, 409, "that of another request"),
        ({"last-event-id": "1:1"}, {"stream_id": "t"}, 404, "No stream t is known"),
        ({"last-event-id": "1:1", "x-gateway-inference-fairness-id": "a"}, {}, 404, "No stream s"),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused_in_words(
    run, serve, headers: dict[str, str], fields: dict[str, Any], status: int, words: str
):
    async def main():
        async with serve() as served:
            assert (await served.http.post(COMPLETIONS, json=BODY)).status_code == 200
            response = await served.http.post(COMPLETIONS, json={**BODY, **fields}, headers=headers)
            assert response.status_code == status
            assert words in response.json()["error"]["message"]

    run(main())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": False}, "stream_id"),
        ({"prompt": ["x", "y"]}, "stream_id"),
        ({"stream_id": "a/b"}, "stream_id"),
        ({"echo": True}, "echo"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"model": "nobody"}, "model"),
        ({"n": 1000}, "n"),
    ],
)
def test_what_cannot_be_begun_is_refused_and_leaves_no_stream(
    run, serve, fields: dict[str, Any], param: str
):
    async def main():
        async with serve() as served:
            response = await served.http.post(COMPLETIONS, json={**BODY, **fields})
            assert response.status_code in (400, 404)
            assert response.json()["error"]["param"] == param
            assert (await served.http.post(COMPLETIONS, json=BODY)).status_code == 200

    run(main())


def test_where_no_streams_are_kept_resumption_is_refused_for_good(run, serve):
    async def main():
        async with serve(limits=Limits(resumption=ResumptionLimits(max_streams=0))) as served:
            response = await served.http.post(COMPLETIONS, json=BODY)
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["param"] == "stream_id"
            assert error["message"].startswith("Resumption is switched off here")

    run(main())


def test_choices_beyond_the_seats_are_refused(run, serve):
    async def main():
        async with serve(ready=False) as served:
            served.front.engine.seats = 2
            served.front.engine.become_ready()
            await served.front.client.ready()
            response = await served.http.post(COMPLETIONS, json={**BODY, "n": 3})
            assert response.status_code == 400
            assert "n is 3, but with credit or a stream_id at most 2" in response.text

    run(main())


def test_the_order_of_a_bodys_fields_is_none_of_its_meaning(run, serve):
    async def main():
        async with serve() as served:
            first = await served.http.post(COMPLETIONS, json=BODY)
            again = await served.http.post(COMPLETIONS, json=dict(reversed(BODY.items())))
            assert again.text == first.text
            assert len(served.front.engine.submits()) == 1
            other = await served.http.post(CHAT, json=CHAT_BODY)
            assert other.status_code == 409

    run(main())


def test_what_nobody_reads_is_bounded_and_parked_until_it_is_read(run, serve):
    async def main():
        limits = Limits(resumption=ResumptionLimits(max_bytes=64 << 10))
        async with serve(limits=limits, max_model_len=4096) as served:
            engine = served.front.engine
            engine.reply = lambda submit: [5 + i % 60 for i in range(1000)]
            body = {**BODY, "max_tokens": 1000, "ignore_eos": True}
            client = Client(served, COMPLETIONS, body)
            reader = await client.connect()
            await client.read_events(reader, 1)
            client.drop()
            await until(lambda: any(row.is_parked for row in engine.running.values()))
            [stream] = served.front.generator.resumption._streams.values()
            assert stream.log.num_bytes <= 64 << 10
            assert engine.generated < 200
            text = client.received.decode() + (await client.get()).text
            assert text.count("[DONE]") == 1
            assert text.count("data: {") == 1001
            assert stream.log.num_bytes <= 64 << 10
            gone = await served.http.get("/v1/streams/s", headers={"last-event-id": "1:1"})
            assert gone.status_code == 410
            assert gone.json()["error"]["code"] == "offset_gone"

    run(main())


def test_a_stream_is_given_up_by_its_id(run, serve):
    async def main():
        async with serve() as served:
            engine = served.front.engine
            client = Client(served, COMPLETIONS, BODY)
            reader = await client.begin(1)
            assert (await served.http.delete("/v1/streams/s")).json() == {"status": "ok"}
            assert b"stream_cancelled" in await reader.readuntil(b"\r\n0\r\n\r\n")
            client.drop()
            await engine.until(lambda: bool(engine.cancels()))
            assert (await served.http.delete("/v1/streams/s")).status_code == 404
            assert (await served.http.head("/v1/streams/s")).status_code == 405

    run(main())


def test_an_engine_lost_meanwhile_is_told_behind_what_came(run, serve):
    async def main():
        async with serve() as served:
            engine = served.front.engine
            client = Client(served, COMPLETIONS, BODY)
            await client.begin(1)
            await client.leave()
            engine.step()
            engine.die()
            await served.front.client.lost()
            response = await client.get()
            assert response.status_code == 200
            first, failure, rest = response.text.split("\n\n")
            assert first.startswith("id: 2:2\n")
            assert failure.startswith("id: 3:2\n")
            assert json.loads(failure.split("data: ")[1])["error"]["type"] == "server_error"
            assert rest == ""
            client.received += response.content
            assert (await client.get()).status_code == 204

    run(main())


def test_a_connection_that_meets_a_bug_is_told_and_another_goes_on(run, serve, monkeypatch):
    async def main():
        async with serve() as served:
            engine = served.front.engine
            client = Client(served, COMPLETIONS, BODY)
            reader = await client.begin(1)

            def broken(*_: object) -> None:
                raise ValueError("secret path")

            with monkeypatch.context() as patched, capture_logs() as logs:
                patched.setattr(StreamLog, "after", broken)
                engine.step()
                last = await reader.readuntil(b"\r\n0\r\n\r\n")
            [event] = [line for line in last.splitlines() if line.startswith(b"data: ")]
            assert json.loads(event[6:])["error"] == {
                "message": "Something went wrong in the server.",
                "type": "server_error",
                "param": None,
                "code": None,
            }
            assert [log["event"] for log in logs if log["log_level"] == "error"] == ["response_cut"]
            engine.resume()
            rest = (await client.get()).text
            whole = (await served.http.get("/v1/streams/s")).text
            assert client.received.decode() + rest == whole
            client.drop()

    run(main())


def test_a_drain_waits_for_streams_that_may_be_gone_on_with(run, serve):
    async def main():
        timers = ManualTimers()
        async with serve(later=timers) as served:
            engine, generator = served.front.engine, served.front.generator
            clients = [
                Client(served, COMPLETIONS, {**BODY, "stream_id": name}) for name in ("s", "t")
            ]
            for client in clients:
                await client.begin(1)
                client.drop()
            await until(waiting(served, 2))
            draining = asyncio.create_task(generator.drain(10))
            await asyncio.sleep(0)
            response = await served.http.post(COMPLETIONS, json={**BODY, "stream_id": "new"})
            assert response.status_code == 503
            engine.resume()
            await until(served.front.is_clean)
            assert not generator.is_idle
            assert (await served.http.get("/load")).json() == {"server_load": 2}
            assert "[DONE]" in (await clients[0].get()).text
            assert not generator.is_idle
            timers.advance(30)
            assert await draining

    run(main())


def test_notices_have_their_numbers_among_the_chunks(run, serve):
    async def main():
        async with serve() as served:
            body = {**BODY, "stream_options": {"include_usage": True, "include_notices": True}}
            first = await served.http.post(COMPLETIONS, json=body)
            assert "event: cadenza.notice\ndata: " in first.text
            ids = [line for line in first.text.splitlines() if line.startswith("id: ")]
            assert [int(line[4:].partition(":")[0]) for line in ids] == [*range(1, len(ids) + 1)]

    run(main())


@pytest.mark.parametrize("size", [0, 1000, 1_000_000])
def test_a_reader_that_sends_what_nobody_asked_for_is_missed_when_it_leaves(run, serve, size):
    """A body that nobody reads, of which so much is kept that reading might cease."""

    async def main():
        async with serve() as served:
            served.front.engine.auto = False
            client = Client(served, COMPLETIONS, BODY)
            await client.connect()
            await served.front.engine.until(lambda: bool(served.front.engine.waiting))
            await client.leave()
            data = b"GET /v1/streams/s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size
            _, writer = await served.raw_bytes(data + b"x" * size)
            await until(waiting(served, 0))
            writer.transport.abort()
            await until(waiting(served))

    run(main())
