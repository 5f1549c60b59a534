"""One Session without a network: its order, its bounds and its ends, on a loop that stands still.

`settle` lets every task run until none can go on, so no test waits for time to pass.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager

import pytest
from google.protobuf import duration_pb2
from structlog.testing import capture_logs

from cadenza.service.errors import EngineUnavailable, GenerationFailed, InvalidRequest
from cadenza.service.events import Delta
from cadenza.service.rpc import session as session_module
from cadenza.service.rpc import wire_format
from cadenza.service.rpc.live import MAX_ENDED, MAX_LIVE
from cadenza.service.rpc.session import (
    MAX_UNHANDLED,
    REPLIES_LIMIT_BYTES,
    TOKENS_LIMIT_BYTES,
    Session,
)
from cadenza.service.rpc.transcripts import TranscriptBudget
from cadenza.v1 import generation_pb2 as pb

INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED, CANCELLED = 3, 5, 8, 1
UNAVAILABLE, INTERNAL = 14, 13


async def settle() -> None:
    """Run the loop until nothing more can happen by itself."""
    for _ in range(50):
        await asyncio.sleep(0)


class Client:
    """The client's end of a stream: what it sends, and what it has been sent."""

    def __init__(self) -> None:
        self.responses: list[pb.SessionResponse] = []
        self.reads = asyncio.Event()  # cleared: the client has stopped reading
        self.reads.set()
        self.is_gone = False  # writes to it fail
        self.num_taken = 0  # actions that the server has read
        self._actions: asyncio.Queue[pb.SessionRequest | None] = asyncio.Queue()

    def send(self, *actions: pb.SessionRequest) -> None:
        for action in actions:
            self._actions.put_nowait(action)

    def half_close(self) -> None:
        self._actions.put_nowait(None)

    async def actions(self):
        while (action := await self._actions.get()) is not None:
            self.num_taken += 1
            yield action

    async def write(self, response: bytes) -> None:
        await self.reads.wait()
        if self.is_gone:
            raise ConnectionError
        self.responses.append(pb.SessionResponse.FromString(response))

    @property
    def events(self) -> list[pb.Event]:
        return [event for response in self.responses for event in response.events]

    def events_of(self, request_id: str) -> list[pb.Event]:
        return [event for event in self.events if event.request_id == request_id]

    def kinds_of(self, request_id: str) -> list[str]:
        return [event.WhichOneof("event") for event in self.events_of(request_id)]

    @property
    def num_terminals(self) -> Counter[str]:
        """How often each request was told to be over."""
        ends = (event for event in self.events if event.WhichOneof("event") in TERMINALS)
        return Counter(event.request_id for event in ends)


TERMINALS = ("finished", "failed")


@asynccontextmanager
async def open_session(generator, budget=None):
    """A running session, its client, and the task that runs it; cancelled at the end."""
    client = Client()
    session = Session(generator, client.actions(), client.write, budget)
    task = asyncio.create_task(session.run())
    try:
        yield session, client, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_interleaved_requests_each_end_exactly_once(generator, submit_of):
    names = [str(number) for number in range(20)]
    async with open_session(generator) as (_, client, task):
        client.send(*(submit_of(name) for name in names))
        client.half_close()
        await settle()
        for word in ("a", "b"):
            for name in names:
                generator.generations[name].feed(Delta(choice=0, text=word + name, token_ids=[1]))
            await settle()
        for name in reversed(names):
            generator.generations[name].end()
        await task

    assert client.num_terminals == Counter(names)
    for name in names:
        assert client.kinds_of(name) == [
            "accepted",
            "tokens",
            "tokens",
            "choice_finished",
            "finished",
        ]
        assert [event.tokens.text for event in client.events_of(name)[1:3]] == [
            "a" + name,
            "b" + name,
        ]


async def test_what_one_step_brings_to_all_requests_is_one_message(generator, submit_of):
    names = [str(number) for number in range(20)]
    async with open_session(generator) as (_, client, _task):
        client.send(*(submit_of(name) for name in names))
        await settle()
        for _ in range(3):
            client.responses.clear()
            for name in names:
                generator.generations[name].feed(Delta(choice=0, text="x", token_ids=[1]))
            await settle()

            assert len(client.responses) == 1
            assert [event.request_id for event in client.events] == names


async def test_more_than_a_message_may_hold_comes_in_several(generator, submit_of):
    async with open_session(generator) as (session, client, _task):
        client.send(submit_of("a"))
        await settle()
        client.responses.clear()
        event = pb.Event(request_id="a", tokens=pb.Tokens(text="x" * 1000))
        told = [wire_format.event(event)] * 5000
        session._outbox.put(told)
        await settle()

        assert client.events == [event] * 5000
        assert max(response.ByteSize() for response in client.responses) <= 1 << 20


async def test_a_cancel_ends_its_request_alone(generator, submit_of, cancel_of):
    async with open_session(generator) as (_, client, task):
        client.send(submit_of("a"), submit_of("b"))
        await settle()
        client.send(cancel_of("a"))
        await settle()

        assert generator.generations["a"].cancelled.is_set()
        assert client.kinds_of("a") == ["accepted", "failed"]
        assert client.events_of("a")[-1].failed.code == CANCELLED
        assert not generator.generations["b"].cancelled.is_set()
        generator.generations["b"].say("fine")
        client.half_close()
        await task

    assert client.kinds_of("b")[-1] == "finished"
    assert client.num_terminals == {"a": 1, "b": 1}


async def test_a_cancel_reaches_a_request_that_waits_for_the_engine(
    generator, submit_of, cancel_of, monkeypatch
):
    left = asyncio.Event()

    async def submit(request, control):
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    monkeypatch.setattr(generator, "submit", submit)
    async with open_session(generator) as (_, client, task):
        client.send(submit_of("a"))
        await settle()
        client.send(cancel_of("a"))
        client.half_close()
        await task

    assert left.is_set()
    assert client.kinds_of("a") == ["failed"]


async def test_a_lost_cancellation_brings_no_event_after_the_end(
    generator, submit_of, cancel_of, monkeypatch
):
    submit = generator.submit

    async def stubborn(request: object, control: object):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await submit(request)

    monkeypatch.setattr(generator, "submit", stubborn)
    async with open_session(generator) as (_, client, task):
        client.send(submit_of("a"))
        await settle()
        client.send(cancel_of("a"))
        client.half_close()
        await task

    assert client.kinds_of("a") == ["failed"]
    assert generator.generations["a"].cancelled.is_set()


async def test_a_cancel_of_a_request_that_has_ended_is_ignored(generator, submit_of, cancel_of):
    async with open_session(generator) as (_, client, task):
        client.send(submit_of("a"))
        await settle()
        generator.generations["a"].say("x")
        await settle()
        client.send(cancel_of("a"), cancel_of("a"))
        client.half_close()
        await task

    assert client.num_terminals == {"a": 1}
    assert client.kinds_of("a")[-1] == "finished"


async def test_a_name_is_free_again_after_a_cancel(generator, submit_of, cancel_of):
    async with open_session(generator) as (_, client, task):
        client.send(submit_of("a", "first"))
        await settle()
        client.send(cancel_of("a"), submit_of("a", "second"))
        await settle()
        generator.generations["second"].say("x")
        client.half_close()
        await task

    assert client.kinds_of("a") == [
        "accepted",
        "failed",
        "accepted",
        "notice",
        "tokens",
        "choice_finished",
        "finished",
    ]


async def test_a_live_name_is_refused_and_the_live_request_goes_on(generator, submit_of):
    async with open_session(generator) as (_, client, task):
        client.send(submit_of("a", "first"), submit_of("a", "second"))
        await settle()
        generator.generations["first"].say("x")
        client.half_close()
        await task
    (refusal,) = client.events_of("")

    assert refusal.failed.code == INVALID_ARGUMENT
    assert refusal.failed.field == "request_id"
    assert "'a'" in refusal.failed.message
    assert "second" not in generator.generations
    assert client.kinds_of("a")[-1] == "finished"
    assert client.num_terminals["a"] == 1


@pytest.mark.parametrize("name", ["", "x" * 129])
async def test_a_name_that_is_none_or_too_long_is_refused(generator, submit_of, name):
    async with open_session(generator) as (_, client, task):
        client.send(submit_of(name, "text"), submit_of("x" * 128, "other"))
        client.half_close()
        await settle()
        generator.generations["other"].say("x")
        await task
    (refusal,) = client.events_of("")

    assert refusal.failed.code == INVALID_ARGUMENT
    assert refusal.failed.field == "request_id"
    assert "text" not in generator.generations
    assert client.num_terminals["x" * 128] == 1


async def test_an_unknown_action_is_refused_and_the_stream_goes_on(generator, submit_of):
    async with open_session(generator) as (_, client, task):
        client.send(pb.SessionRequest(), submit_of("a"))
        client.half_close()
        await settle()
        generator.generations["a"].say("x")
        await task

    assert [event.failed.code for event in client.events_of("")] == [INVALID_ARGUMENT]
    assert client.kinds_of("a")[-1] == "finished"


def control_of(request_id: str) -> list[pb.SessionRequest]:
    """One of each action on a running request."""
    timeout = duration_pb2.Duration(seconds=60, nanos=500_000_000)
    return [
        pb.SessionRequest(reprioritise=pb.Reprioritise(request_id=request_id, priority=-7)),
        pb.SessionRequest(set_deadline=pb.SetDeadline(request_id=request_id, timeout=timeout)),
        pb.SessionRequest(set_deadline=pb.SetDeadline(request_id=request_id)),
        pb.SessionRequest(credit=pb.Credit(request_id=request_id, tokens=9)),
        pb.SessionRequest(credit=pb.Credit(request_id=request_id, tokens=2)),
    ]


async def test_a_running_request_is_in_its_clients_control(generator, submit_of):
    async with open_session(generator) as (_, client, _task):
        client.send(submit_of("a"), submit_of("b"))
        await settle()
        before_s = time.monotonic()
        client.send(*control_of("a"))
        await settle()

        (priority, deadline, *others) = generator.generations["a"].controls
        assert priority == ("priority", -7)
        assert deadline[0] == "deadline"
        assert before_s + 60.5 <= deadline[1] <= time.monotonic() + 60.5
        assert others == [("deadline", None), ("credit", 9), ("credit", 2)]
        assert not generator.generations["b"].controls
        assert client.events_of("") == []


async def test_control_of_a_request_that_has_ended_is_ignored(generator, submit_of, cancel_of):
    async with open_session(generator) as (_, client, _task):
        client.send(submit_of("a"), cancel_of("a"), *control_of("a"))
        await settle()

        assert not client.events_of("")


async def test_control_of_a_request_that_never_was_is_answered(generator, submit_of, cancel_of):
    long = "x" * 100_000
    async with open_session(generator) as (_, client, _task):
        client.send(submit_of("a"))
        for name in ("b", "", long):
            client.send(*control_of(name), cancel_of(name))
        await settle()

        told = [event.failed for event in client.events_of("")]
        assert [(each.code, each.field) for each in told] == [(NOT_FOUND, "request_id")] * 18
        assert told[0].message == "no request of this stream is called 'b'"
        assert max(len(each.message) for each in told) < 200
        assert not any(each.retryable for each in told)
        assert client.kinds_of("a") == ["accepted"]


@pytest.mark.parametrize("why", ["timeout", "append", "drain", "many"])
async def test_control_of_a_request_that_was_refused_is_ignored(
    generator, submit_of, cancel_of, why
):
    """It was sent before its client could know."""
    refused = submit_of("a")
    if why == "timeout":
        refused.submit.timeout.FromMilliseconds(-1)
    elif why == "append":
        refused = pb.SessionRequest(append=pb.Append(request_id="a", after="nobody"))
    async with open_session(generator) as (session, client, _task):
        num_others = MAX_LIVE if why == "many" else 1
        client.send(*(submit_of(str(number)) for number in range(num_others)))
        for _ in range(10):
            await settle()
        if why == "drain":
            session.drain()
        client.send(refused, *control_of("a"), cancel_of("a"))
        await settle()
        assert client.kinds_of("a") == ["failed"]
        assert client.events_of("") == []

        if why in ("timeout", "append"):
            client.send(pb.SessionRequest(append=pb.Append(request_id="b", after="a")))
            await settle()
            [event] = client.events_of("b")
            assert "'a' failed or was cancelled" in event.failed.message


async def test_a_session_that_ends_keeps_nothing_of_its_requests(generator, submit_of):
    budget = TranscriptBudget(max_tokens=16)
    async with open_session(generator, budget) as (_, client, _task):

        async def finish(name: str, other: Client) -> None:  # 8 tokens
            other.send(submit_of(name))
            await settle()
            generator.generations[name].say("x")
            await settle()

        await finish("a", client)
        async with open_session(generator, budget) as (_, other, task):
            await finish("b", other)
            other.half_close()
            await task
        await finish("c", client)
        client.send(pb.SessionRequest(append=pb.Append(request_id="d", after="a")))
        await settle()

        assert client.kinds_of("d") == ["accepted"]


async def test_of_ended_requests_the_latest_are_remembered(generator, submit_of, cancel_of):
    async with open_session(generator) as (_, client, _task):
        for number in range(MAX_ENDED + 1):
            client.send(submit_of(str(number)), cancel_of(str(number)))
            await settle()
        client.send(cancel_of("0"), cancel_of("1"), submit_of("1", "again"), cancel_of("1"))
        await settle()

        [unknown] = client.events_of("")
        assert unknown.failed.message == "no request of this stream is called '0'"
        assert client.num_terminals["1"] == 2


@pytest.mark.parametrize("n", [1, 16])
async def test_a_client_that_floods_a_request_waits_for_the_engine(generator, submit_of, n):
    """One message for each choice is on its way to it, and no more than that are not handled."""
    generator.lags()
    flood = [control_of("a")[0]] * (3 * MAX_UNHANDLED // n)
    async with open_session(generator) as (_, client, task):
        client.send(submit_of("a", n=n))
        await settle()
        client.send(*flood)
        client.half_close()
        for told in (1, 2, 3):
            for _ in range(MAX_UNHANDLED):
                await settle()
            assert len(generator.generations["a"].controls) == told * MAX_UNHANDLED // n
            generator.catches_up()
        for choice in range(n):
            generator.generations["a"].end(choice)
        await task


async def test_a_half_close_lifts_credit_that_nobody_could_grant(generator, submit_of):
    """Parked requests would hold the stream, and their memory, for ever."""
    async with open_session(generator) as (_, client, task):
        limited = submit_of("a")
        limited.submit.credit = 1
        client.send(limited, submit_of("b"))
        await settle()
        assert generator.generations["a"].controls == []
        client.half_close()
        await settle()
        assert not task.done()
        [(action, tokens)] = generator.generations["a"].controls

        assert action == "credit"
        assert tokens > 2**31
        for name in "ab":
            generator.generations[name].say("x")
        await task
    assert client.num_terminals == {"a": 1, "b": 1}


async def test_a_half_close_lifts_the_credit_of_what_has_not_begun(
    generator, submit_of, monkeypatch
):
    admitted, submit = asyncio.Event(), generator.submit

    async def slow(request, control):
        await admitted.wait()
        return await submit(request, control)

    monkeypatch.setattr(generator, "submit", slow)
    async with open_session(generator) as (_, client, task):
        limited = submit_of("a")
        limited.submit.credit = 0
        client.send(limited)
        client.half_close()
        await settle()
        admitted.set()
        await settle()
        [(action, _)] = generator.generations["a"].controls
        assert action == "credit"
        generator.generations["a"].say("x")
        await task


async def test_a_submit_says_its_time_and_its_credit(generator, submit_of):
    timed, free = submit_of("a"), submit_of("b")
    timed.submit.timeout.FromMilliseconds(1500)
    timed.submit.credit = 0
    async with open_session(generator) as (_, client, _task):
        before_s = time.monotonic()
        client.send(timed, free)
        await settle()

        (first, second) = generator.requests
        assert before_s + 1.5 <= first.deadline_s <= time.monotonic() + 1.5
        assert first.credit == 0
        assert second.deadline_s is None
        assert second.credit is None


async def test_a_timeout_below_zero_is_refused_and_what_runs_goes_on(generator, submit_of):
    wrong = submit_of("b")
    wrong.submit.timeout.FromMilliseconds(-1500)
    worse = pb.SetDeadline(request_id="a", timeout=duration_pb2.Duration(nanos=-1))
    async with open_session(generator) as (_, client, _task):
        client.send(submit_of("a"), wrong, pb.SessionRequest(set_deadline=worse))
        await settle()

        [refused] = client.events_of("b")
        assert (refused.failed.code, refused.failed.field) == (INVALID_ARGUMENT, "timeout")
        assert refused.failed.message == "timeout is -1.5 s; it must not be negative"
        [told] = client.events_of("")
        assert (told.failed.code, told.failed.field) == (INVALID_ARGUMENT, "timeout")
        assert not generator.generations["a"].controls
        assert not generator.generations["a"].cancelled.is_set()


async def test_requests_past_the_limit_are_refused_until_one_ends(generator, submit_of):
    async with open_session(generator) as (_, client, _task):
        client.send(*(submit_of(str(number)) for number in range(MAX_LIVE + 1)))
        for _ in range(10):
            await settle()
        (refusal,) = client.events_of(str(MAX_LIVE))
        assert refusal.failed.code == RESOURCE_EXHAUSTED
        assert refusal.failed.retryable
        assert refusal.failed.HasField("retry_after")
        assert len(generator.generations) == MAX_LIVE

        generator.generations["0"].say("x")
        await settle()
        client.send(submit_of("late"))
        await settle()
        assert client.kinds_of("late") == ["accepted"]


async def test_a_refused_request_fails_alone(generator, submit_of):
    generator.errors["bad"] = InvalidRequest("top_p is out of range", field="top_p")
    async with open_session(generator) as (_, client, task):
        client.send(submit_of("good"), submit_of("bad"))
        await settle()
        generator.generations["good"].say("x")
        client.half_close()
        await task

    assert client.kinds_of("bad") == ["failed"]
    assert client.events_of("bad")[0].failed == pb.Failed(
        code=INVALID_ARGUMENT, message="top_p is out of range", field="input.top_p"
    )
    assert client.kinds_of("good")[-1] == "finished"


async def test_a_failed_generation_fails_alone(generator, submit_of):
    async with open_session(generator) as (_, client, task):
        client.send(submit_of("a"), submit_of("b"))
        await settle()
        generator.generations["a"].feed(Delta(choice=0, text="x", token_ids=[1]))
        generator.generations["a"].fail(GenerationFailed("the engine was lost", retryable=True))
        await settle()
        generator.generations["b"].say("x")
        client.half_close()
        await task

    assert client.kinds_of("a") == ["accepted", "tokens", "failed"]
    assert client.events_of("a")[-1].failed.code == UNAVAILABLE
    assert client.events_of("a")[-1].failed.retryable
    assert client.kinds_of("b")[-1] == "finished"


async def test_an_unexpected_exception_fails_its_request_and_is_not_told(generator, submit_of):
    generator.errors["a"] = ValueError("secret path")
    with capture_logs() as logs:
        async with open_session(generator) as (_, client, task):
            client.send(submit_of("a"), submit_of("b"))
            client.half_close()
            await settle()
            generator.generations["b"].say("x")
            await task

    assert client.events_of("a")[0].failed.code == INTERNAL
    assert client.events_of("a")[0].failed.message == "Something went wrong in the server."
    assert client.kinds_of("b")[-1] == "finished"
    assert [log["event"] for log in logs] == ["request_failed"]


async def test_half_close_without_requests_ends_the_session(generator):
    async with open_session(generator) as (_, client, task):
        client.half_close()
        await task

    assert client.responses == []


async def test_cancelling_the_session_cancels_every_generation(generator, submit_of):
    names = ["a", "b", "c"]
    async with open_session(generator) as (_, client, task):
        client.send(*(submit_of(name) for name in names))
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert all(generator.generations[name].cancelled.is_set() for name in names)


async def test_a_write_that_fails_ends_the_session_and_cancels_every_generation(
    generator, submit_of
):
    async with open_session(generator) as (_, client, task):
        client.send(submit_of("a"), submit_of("b"))
        await settle()
        client.is_gone = True
        generator.generations["a"].feed(Delta(choice=0, text="x", token_ids=[1]))
        with pytest.raises(ConnectionError):
            await task

    assert all(generation.cancelled.is_set() for generation in generator.generations.values())


async def test_a_client_that_does_not_read_holds_back_its_generations(generator, submit_of):
    names = ["a", "b"]
    num_batches = 4 * TOKENS_LIMIT_BYTES // 1000
    async with open_session(generator) as (_, client, task):
        client.send(*(submit_of(name) for name in names))
        await settle()
        client.reads.clear()
        for name in names:
            for _ in range(num_batches):
                generator.generations[name].feed(Delta(choice=0, text="x" * 1000, token_ids=[1]))
            generator.generations[name].end()
        for _ in range(100):
            await settle()
        pulled = [generator.generations[name].num_pulled for name in names]
        # The outbox, one message in the writer's hand, one batch in each request's.
        assert sum(pulled) <= 2 * TOKENS_LIMIT_BYTES // 1000 + 4
        assert min(pulled) > 0

        client.reads.set()
        client.half_close()
        await task

    assert client.num_terminals == {"a": 1, "b": 1}
    for name in names:
        texts = [event.tokens.text for event in client.events_of(name)]
        assert len("".join(texts)) == 1000 * num_batches
    assert max(response.ByteSize() for response in client.responses) < TOKENS_LIMIT_BYTES + 5000


async def test_a_client_that_does_not_read_holds_back_single_tokens(
    open_front, submit_of, monkeypatch
):
    """Those that go past the request's task, as well."""
    monkeypatch.setattr(session_module, "TOKENS_LIMIT_BYTES", 150)
    async with open_front() as front, open_session(front.generator) as (stream, client, task):
        front.engine.auto = False
        front.says("a long answer, token after token")
        client.send(submit_of("a", max_tokens=200))
        await front.engine.until(lambda: bool(front.engine.waiting))
        await front.step(2)
        client.reads.clear()
        peak = 0
        for _ in range(25):
            await front.step()
            peak = max(peak, stream._outbox.num_bytes)
        client.reads.set()
        front.engine.resume()
        client.half_close()
        await task

    assert 150 <= peak < 200
    texts = [event.tokens.text for event in client.events_of("a")]
    assert "".join(texts) == "a long answer, token after token"


async def test_a_cancel_passes_buffers_full_of_tokens(generator, submit_of, cancel_of):
    async with open_session(generator) as (_, client, _task):
        client.send(submit_of("a"))
        await settle()
        client.reads.clear()
        for _ in range(4 * TOKENS_LIMIT_BYTES // 1000):
            generator.generations["a"].feed(Delta(choice=0, text="x" * 1000, token_ids=[1]))
        for _ in range(100):
            await settle()
        client.send(cancel_of("a"))
        await settle()

        assert generator.generations["a"].cancelled.is_set()


async def test_a_client_that_only_sends_is_no_longer_read(generator, submit_of):
    async with open_session(generator) as (_, client, _task):
        client.reads.clear()
        # A refusal takes 40 bytes. The outbox holds the limit, and so may the writer's message.
        num_sent = 3 * REPLIES_LIMIT_BYTES // 40
        client.send(*(submit_of("", "text") for _ in range(num_sent)))
        for _ in range(100):
            await settle()

        assert client.num_taken < num_sent


async def test_a_drain_finishes_the_live_requests_and_refuses_others(generator, submit_of):
    async with open_session(generator) as (session, client, task):
        client.send(submit_of("a"))
        await settle()
        session.drain()
        client.send(submit_of("b"))
        await settle()
        assert not task.done()
        generator.generations["a"].say("x")
        with pytest.raises(EngineUnavailable):
            await task

    assert client.kinds_of("a")[-1] == "finished"
    assert client.events_of("b")[0].failed.code == UNAVAILABLE
    assert not generator.generations["a"].cancelled.is_set()


async def test_a_drain_ends_an_idle_session_at_once(generator):
    async with open_session(generator) as (session, _client, task):
        await settle()
        session.drain()
        with pytest.raises(EngineUnavailable):
            await task


async def test_a_session_drained_before_it_runs_ends_at_once(generator):
    client = Client()
    session = Session(generator, client.actions(), client.write)
    session.drain()
    with pytest.raises(EngineUnavailable):
        await session.run()


async def test_a_drain_after_half_close_is_an_ordinary_end(generator, submit_of):
    async with open_session(generator) as (session, client, task):
        client.send(submit_of("a"))
        client.half_close()
        await settle()
        session.drain()
        generator.generations["a"].say("x")
        await task

    assert client.kinds_of("a")[-1] == "finished"
