"""Who may go on with which stream, for how long, and what is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from cadenza.service.errors import (
    UNEXPECTED,
    InvalidRequest,
    OffsetGone,
    Overloaded,
    RequestError,
    StreamCancelled,
    StreamConflict,
    StreamTakenOver,
    UnknownModel,
    UnknownStream,
)
from cadenza.service.limits import ResumptionLimits
from cadenza.service.metrics import Metrics
from cadenza.service.request import GenerationRequest
from cadenza.service.resumable_stream import Reader, ResumableStream, StreamKey
from cadenza.service.resumption import Resumption, stream_id
from cadenza.service.stream_log import Entry, Place

from .manual_timers import ManualTimers

KEY, BODY = StreamKey("", "s"), b"body"
LIMITS = ResumptionLimits(grace_s=30, max_streams=3, max_bytes=64 << 10)


class Writer:
    """Tells a stream what the test says, as `tell` of `Resumption.open`."""

    def __init__(self) -> None:
        self.stream: ResumableStream | None = None
        self.is_cancelled = False
        self.num_started = 0
        self.left = asyncio.Event()
        self._end: asyncio.Future[None] | None = None

    async def __call__(self, stream: ResumableStream) -> None:
        self.stream, self.num_started = stream, self.num_started + 1
        self._end = asyncio.get_running_loop().create_future()
        try:
            await self._end
        except asyncio.CancelledError:
            self.is_cancelled = True
            self.left.set()
            raise

    def say(self, *texts: str) -> None:
        assert self.stream is not None
        told = sum(self.stream.log.offsets)
        self.stream.tell([Entry(text.encode(), (told + i,)) for i, text in enumerate(texts, 1)])
        self.stream.count(told + len(texts))

    async def end(self, error: Exception | None = None) -> None:
        assert self._end is not None
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)
        await settle()


class Kept:
    """A `Resumption` with timers by hand."""

    def __init__(self, limits: ResumptionLimits = LIMITS) -> None:
        self.timers, self.metrics = ManualTimers(), Metrics()
        self.streams = Resumption(limits, self.metrics, self.timers)

    async def open(self, writer: Writer, id: str = "s", body: bytes = BODY) -> Reader:
        key = StreamKey("", id)
        reader = self.streams.open(key, "http", body, GenerationRequest(), writer)
        await settle()
        return reader

    def resume(self, number: int | None = None, *offsets: int, **more: Any) -> Reader:
        place = Place(field="at", number=number, offsets=offsets or None)
        return self.streams.resume(**{"key": KEY, "protocol": "http", "place": place, **more})


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def read(reader: Reader) -> tuple[list[str], RequestError | None]:
    """All that comes without waiting, and the failure behind it."""
    texts: list[str] = []

    async def take() -> None:
        async for entries in reader:
            texts.extend(entry.data.decode() for entry in entries)

    task = asyncio.ensure_future(take())
    await settle()
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return texts, None
    error = task.exception()
    assert error is None or isinstance(error, RequestError)
    return texts, error


def test_what_a_dropped_reader_took_does_not_come_again(run):
    async def main():
        kept, writer = Kept(), Writer()
        with await kept.open(writer) as reader:
            writer.say("a", "b")
            assert await read(reader) == (["a", "b"], None)
        writer.say("c")
        with kept.resume(2, 2) as reader:
            assert await read(reader) == (["c"], None)
        writer.say("d")
        await writer.end()
        with kept.resume(None, 3) as reader:
            assert await read(reader) == (["d"], None)
            assert reader.is_at_end
        assert kept.metrics.streams_resumed == {"http": 2, "grpc": 0}

    run(main())


def test_what_was_given_out_and_not_taken_comes_again(run):
    """A reader that is cancelled while it writes has not taken its batch."""

    async def main():
        kept, writer = Kept(), Writer()
        with await kept.open(writer) as reader:
            writer.say("a")
            await anext(reader)
        await writer.end()
        assert kept.streams.num_undelivered == 1
        with kept.resume(0) as reader:
            assert await read(reader) == (["a"], None)
        assert kept.streams.num_undelivered == 0

    run(main())


def test_a_drop_before_the_first_event_can_be_tried_again_with_the_same_request(run):
    async def main():
        kept, writer = Kept(), Writer()
        (await kept.open(writer)).close()
        with await kept.open(writer) as reader:
            writer.say("a")
            assert await read(reader) == (["a"], None)
        assert writer.num_started == 1, "it was not begun anew"

    run(main())


def test_a_second_reader_takes_over_and_the_first_is_told(run):
    async def main():
        kept, writer = Kept(), Writer()
        first = await kept.open(writer)
        writer.say("a")
        await anext(first)
        waiting = asyncio.ensure_future(anext(first))
        await settle()
        second = kept.resume(1)
        with pytest.raises(StreamTakenOver):
            await waiting
        first.close()
        writer.say("b")
        assert await read(second) == (["b"], None)
        assert kept.timers.num_waiting == 0, "it is read"
        second.close()
        assert kept.timers.num_waiting == 1

    run(main())


def test_who_may_not_read_takes_nothing_over(run):
    async def main():
        kept, writer = Kept(), Writer()
        reader = await kept.open(writer)
        writer.say("a")
        for refused, kind in (
            (lambda: kept.resume(2), InvalidRequest),
            (lambda: kept.resume(1, 5), InvalidRequest),
            (lambda: kept.resume(1, fingerprint=b"other"), StreamConflict),
            (lambda: kept.resume(1, protocol="grpc"), StreamConflict),
            (lambda: kept.resume(1, key=StreamKey("acme", "s")), UnknownStream),
            (lambda: kept.resume(1, key=StreamKey("", "t")), UnknownStream),
        ):
            with pytest.raises(kind):
                refused()
        with pytest.raises(StreamConflict, match="another stream_id"):
            await kept.open(writer, body=b"other")
        assert await read(reader) == (["a"], None)
        assert kept.metrics.resumptions_refused == {
            "unknown": 2,
            "conflict": 3,
            "offset": 2,
            "gone": 0,
        }

    run(main())


def test_a_running_stream_that_nobody_goes_on_with_ends_with_its_grace(run):
    async def main():
        kept, writer = Kept(), Writer()
        (await kept.open(writer)).close()
        kept.timers.advance(29)
        assert kept.streams.num_waiting == 1
        kept.resume(0).close()
        kept.timers.advance(29)
        assert not writer.is_cancelled, "the grace began anew"
        kept.timers.advance(1)
        await settle()

        assert writer.is_cancelled
        assert kept.streams.num_waiting == kept.timers.num_waiting == 0
        assert kept.metrics.streams_expired == {"running": 1, "ended": 0}
        with pytest.raises(UnknownStream, match="No stream s is known"):
            kept.resume(0)

    run(main())


@pytest.mark.parametrize("is_read", [True, False])
def test_a_stream_that_ended_is_kept_for_its_grace(run, is_read: bool):
    async def main():
        kept, writer = Kept(), Writer()
        with await kept.open(writer) as reader:
            writer.say("a")
            await writer.end()
            assert kept.streams.num_undelivered == 1
            if is_read:
                assert await read(reader) == (["a"], None)
        kept.timers.advance(29)
        assert kept.streams.num_undelivered == (not is_read)
        with kept.resume(0) as reader:
            if is_read:
                assert await read(reader) == (["a"], None), "its last words may have been lost"
        kept.timers.advance(30)
        assert kept.metrics.streams_expired == {"running": 0, "ended": not is_read}
        assert kept.streams.num_undelivered == 0
        with pytest.raises(UnknownStream):
            kept.resume(0)

    run(main())


def test_a_stream_that_is_read_never_expires(run):
    async def main():
        kept, writer = Kept(), Writer()
        reader = await kept.open(writer)
        kept.timers.advance(1e6)
        writer.say("a")
        assert await read(reader) == (["a"], None)

    run(main())


def test_a_failure_comes_behind_what_was_told_and_again_to_who_comes_back(run):
    async def main():
        kept, writer = Kept(), Writer()
        (await kept.open(writer)).close()
        writer.say("a")
        await writer.end(Overloaded("full"))
        assert kept.streams.num_undelivered == 1
        for _ in range(2):
            with kept.resume(0) as reader:
                texts, error = await read(reader)
                assert (texts, str(error)) == (["a"], "full")
                assert not reader.is_at_end
            assert kept.streams.num_undelivered == 0

    run(main())


@pytest.mark.parametrize("is_read", [True, False])
def test_what_failed_before_it_told_anything_leaves_its_id_free(run, is_read: bool):
    async def main():
        kept, writer = Kept(), Writer()
        reader = await kept.open(writer)
        if not is_read:
            reader.close()
        await writer.end(UnknownModel("no"))
        if is_read:
            assert isinstance((await read(reader))[1], UnknownModel)
            reader.close()
        with pytest.raises(UnknownStream):
            kept.resume(0)
        assert kept.timers.num_waiting == kept.streams.num_undelivered == 0
        await kept.open(writer, body=b"mended")
        assert writer.num_started == 2

    run(main())


def test_a_bug_is_told_as_a_failure_and_logged(run):
    async def main():
        kept, writer = Kept(), Writer()
        reader = await kept.open(writer)
        writer.say("a")
        with capture_logs() as logs:
            await writer.end(ZeroDivisionError("secret"))
        assert [log["event"] for log in logs] == ["stream_failed"]
        texts, error = await read(reader)
        assert (texts, str(error)) == (["a"], UNEXPECTED)

    run(main())


def test_a_cancelled_stream_is_gone_for_its_reader_and_others(run):
    async def main():
        kept, writer = Kept(), Writer()
        reader = await kept.open(writer)
        writer.say("a")
        kept.streams.cancel(KEY)
        texts, error = await read(reader)
        assert texts == ["a"]
        assert isinstance(error, StreamCancelled)
        assert writer.is_cancelled
        reader.close()
        assert kept.timers.num_waiting == 0
        with pytest.raises(UnknownStream):
            kept.streams.cancel(KEY)
        assert kept.metrics.streams_expired == {"running": 0, "ended": 0}

    run(main())


def test_only_who_reads_a_stream_gives_it_up(run):
    async def main():
        kept, writer = Kept(), Writer()
        first = await kept.open(writer)
        second = kept.resume(0)
        kept.streams.give_up(first)
        await settle()
        assert not writer.is_cancelled
        kept.streams.give_up(second)
        await settle()
        assert writer.is_cancelled

    run(main())


def test_too_many_streams_are_refused_but_for_those_that_were_delivered(run):
    async def main():
        kept, writers = Kept(), [Writer() for _ in range(5)]
        readers = [await kept.open(writer, str(i)) for i, writer in enumerate(writers[:3])]
        with pytest.raises(Overloaded, match="3 streams"):
            await kept.open(writers[3], "3")
        assert writers[3].num_started == 0

        writers[1].say("a")
        await writers[1].end()
        readers[1].close()
        with pytest.raises(Overloaded):
            await kept.open(writers[3], "3")
        with kept.resume(0, key=StreamKey("", "1")) as reader:
            await read(reader)
            with pytest.raises(Overloaded):
                await kept.open(writers[3], "3")
        await kept.open(writers[3], "3")
        with pytest.raises(UnknownStream):
            kept.resume(0, key=StreamKey("", "1"))
        assert kept.timers.num_waiting == 0, "that of the forgotten one is gone with it"

    run(main())


def test_what_waits_for_a_reader_is_bounded_and_goes_on_when_it_is_read(run):
    async def main():
        kept, writer = Kept(), Writer()
        granted: list[int] = []
        reader = await kept.open(writer)
        assert writer.stream is not None
        flow = writer.stream.flow
        flow.launched(type("Generation", (), {"grant": staticmethod(granted.append)})())
        reader.close()
        num_told = 0
        while num_told < flow.first:
            writer.say("x" * 700)
            num_told += 1
        assert not granted
        assert writer.stream.log.num_bytes < LIMITS.max_bytes

        with kept.resume(0) as reader:
            texts, _ = await read(reader)
            assert len(texts) == num_told
            assert sum(granted) == flow.first

    run(main())


def test_who_comes_too_late_for_what_is_forgotten_is_told(run):
    async def main():
        kept, writer = Kept(), Writer()
        with await kept.open(writer) as reader:
            for _ in range(200):
                writer.say("x" * 700)
                await read(reader)
        with pytest.raises(OffsetGone, match="no longer kept"):
            kept.resume(1)
        with pytest.raises(OffsetGone):
            await kept.open(writer)
        assert kept.metrics.resumptions_refused["gone"] == 2
        assert writer.stream is not None
        assert writer.stream.log.num_bytes <= LIMITS.max_bytes

    run(main())


def test_closing_gives_everything_up(run):
    async def main():
        kept, writers = Kept(), [Writer(), Writer()]
        readers = [await kept.open(writer, str(i)) for i, writer in enumerate(writers)]
        readers[1].close()
        kept.streams.close()
        await settle()
        assert all(writer.is_cancelled for writer in writers)
        assert kept.timers.num_waiting == 0

    run(main())


def test_without_a_grace_a_stream_ends_with_its_reader(run):
    async def main():
        kept, writer = Kept(ResumptionLimits(grace_s=0)), Writer()
        (await kept.open(writer)).close()
        kept.timers.advance(0)
        await settle()
        assert writer.is_cancelled

    run(main())


def test_the_loop_is_the_clock_unless_there_is_another(run):
    async def main():
        writer = Writer()
        streams = Resumption(ResumptionLimits(grace_s=0), Metrics())
        reader = streams.open(KEY, "http", BODY, GenerationRequest(), writer)
        await settle()
        reader.close()
        async with asyncio.timeout(10):
            await writer.left.wait()

    run(main())


@pytest.mark.parametrize("value", ["", "a b", "é", "x" * 129, 5, None, ["a"], "a/b", "a\n"])
def test_ids_that_no_path_carries_are_refused(value: Any):
    with pytest.raises(InvalidRequest, match="stream_id must be 1 to 128") as caught:
        stream_id(value)
    assert caught.value.field == "stream_id"


def test_ids_that_paths_carry_are_taken():
    for value in ("a", "A-b_c.d~9", "x" * 128):
        assert stream_id(value) == value
