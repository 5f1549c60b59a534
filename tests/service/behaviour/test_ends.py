"""Requests that end otherwise than well do so alike over every transport, and leave nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from cadenza.service.events import Delta, Event
from cadenza.service.generation import Generation
from cadenza.service.limits import Limits
from tests.transports import Failure, Told, Transport

from ..waiting import until
from .conftest import Served

LONG = {"prompt": "x", "max_tokens": 200, "ignore_eos": True}
NAMES = ("json", "sse", "generate", "session")
FULL = "The queue is full (1 choices wait). Try again later."


async def disturbed(
    served: Served, transport: Transport, fields: dict[str, Any], disturb: Callable[[], Any]
) -> Told:
    """The answer to a request with which something happens once the engine has it."""
    engine = served.front.engine
    engine.auto = False
    call = asyncio.create_task(transport.ask(fields))
    await engine.until(lambda: len(engine.waiting) == fields.get("n", 1))
    disturb()
    told = await call
    await engine.until(served.front.is_clean)
    return told


def alike(told: dict[str, Told], parts: dict[int, str]) -> Failure:
    """The failure that all are told, after the same texts where they are told in parts."""
    failures = {each.failure for each in told.values()}
    assert len(failures) == 1, told
    for name, each in told.items():
        texts = {index: choice.text for index, choice in each.choices.items() if choice.text}
        assert texts == ({} if name == "json" else parts)
        assert each.usage is None
        assert all(choice.reason is None for choice in each.choices.values())
    [failure] = failures
    assert failure is not None
    return failure


def without_retry(failure: Failure) -> Failure:
    """An event of a stream that has begun cannot say when to come back; the code says whether."""
    return Failure(failure.code, failure.message, failure.field)


@pytest.mark.parametrize("begun", [0, 3], ids=["queued", "running"])
def test_a_request_that_fails(run, serve, begun: int):
    """What two choices had said before stands, where it was told."""

    async def main():
        async with serve() as served:
            engine = served.front.engine
            served.front.says("abcdefghij")

            def fail() -> None:
                engine.step(begun)
                engine.fail("no luck", max([*engine.waiting, *engine.running]))

            told = {
                each.name: await disturbed(served, each, {**LONG, "n": 2}, fail)
                for each in served.transports
            }
            parts = {0: "abc", 1: "abc"} if begun else {}
            assert alike(told, parts) == Failure("INTERNAL", "no luck", None)

    run(main())


@pytest.mark.parametrize("transport", NAMES)
@pytest.mark.parametrize("begun", [0, 3], ids=["queued", "running"])
def test_an_engine_that_is_lost(run, serve, transport: str, begun: int):
    """The same request may succeed elsewhere or later, and so may whatever comes after it."""

    async def main():
        async with serve() as served:
            engine = served.front.engine
            served.front.says("abcdefghij")

            def die() -> None:
                engine.step(begun)
                engine.die()

            told = await disturbed(served, served.over(transport), LONG, die)
            lost = Failure("UNAVAILABLE", "The engine process is gone.", None)
            assert without_retry(told.failure) == lost
            is_event = transport == "sse" and begun
            assert told.failure.retry_after_s == (None if is_event else 1.0)
            assert told.choices.keys() == ({0} if begun and transport != "json" else set())

            for each in served.transports:
                after = (await each.ask(LONG)).failure
                assert after == Failure("UNAVAILABLE", lost.message, None, 1.0)

    run(main())


@pytest.mark.parametrize("begun", [0, 6], ids=["queued", "running"])
def test_a_deadline_that_passes(run, serve, begun: int):
    """What came in time is told first, and what a stop string held back with it."""

    async def main():
        async with serve() as served:
            engine = served.front.engine
            served.front.says("abcdefghij")

            def expire() -> None:
                engine.step(begun)
                engine.expire(*engine.waiting, *engine.running)
                engine.step()

            fields = {**LONG, "stop": ["ef!"], "timeout_s": 100}
            before_s = time.monotonic()
            told = {
                each.name: await disturbed(served, each, fields, expire)
                for each in served.transports
            }
            for submit in engine.submits():
                # gRPC sends a timeout in a few digits, rounded up
                assert before_s + 99.9 < submit.deadline_s < time.monotonic() + 101
            failure = alike(told, {0: "abcdef"} if begun else {})
            message = "The request's deadline passed before it was complete."
            assert failure == Failure("DEADLINE_EXCEEDED", message, None)
            assert served.front.generator.metrics.finished["deadline"] == 4

    run(main())


@pytest.mark.parametrize("state", ["queued", "running", "loading"])
def test_a_request_that_is_given_up(run, serve, state: str):
    async def main():
        async with serve(ready=state != "loading") as served:
            engine, generator = served.front.engine, served.front.generator
            for number, each in enumerate(served.transports, start=1):
                engine.auto = False
                call = asyncio.create_task(each.ask({**LONG, "n": 2}))
                if state == "loading":
                    await until(lambda: generator.num_queued == 1)
                else:
                    await engine.until(lambda: len(engine.waiting) == 2)
                if state == "running":
                    engine.step(3)
                call.cancel()
                await asyncio.wait([call])
                await until(lambda: generator.is_idle and generator.num_in_flight == 0)
                if state != "loading":
                    await engine.until(served.front.is_clean)
                    assert len(engine.cancels()) == 2 * number
                    assert generator.metrics.finished["abort"] == number

    run(main())


def test_a_full_queue(run, serve):
    async def main():
        async with serve(limits=Limits(max_queued=1)) as served:
            engine = served.front.engine
            engine.auto = False
            first = asyncio.create_task(served.transports[0].ask(LONG))
            await engine.until(lambda: bool(engine.waiting))
            for each in served.transports:
                told = await each.ask(LONG)
                assert told.failure == Failure("RESOURCE_EXHAUSTED", FULL, None, 1.0)
            engine.resume()
            assert (await first).failure is None

    run(main())


def quota(**options: Any) -> dict[str, Any]:
    return {"chosen": {"gate_arrivals": "tenant-quota"}, "options": {"tenant-quota": options}}


def test_a_tenant_over_its_quota(run, serve):
    async def main():
        async with serve(**quota(max_queued=1)) as served:
            failure = (await served.ask({**LONG, "n": 2, "tenant": "a"})).failure
            assert (failure.code, failure.retry_after_s) == ("RESOURCE_EXHAUSTED", 1.0)
            assert "limit of 1 waiting choices" in failure.message
            assert (await served.ask({"prompt": "x", "tenant": "a"})).failure is None

    run(main())


def test_a_tenant_over_its_rate(run, serve):
    async def main():
        async with serve(**quota(tokens_per_s=0.01, burst_s=3000)) as served:
            request = {"prompt": "x", "max_tokens": 20, "tenant": "a"}
            assert (await served.transports[0].ask(request)).failure is None
            for each in served.transports:
                failure = (await each.ask(request)).failure
                assert failure.code == "RESOURCE_EXHAUSTED"
                assert failure.message.startswith("Your limit of 0.01 tokens a second is reached.")
                assert 0 < failure.retry_after_s <= 3600
                other = await each.ask({**request, "tenant": each.name})
                assert other.failure is None

    run(main())


@pytest.mark.parametrize("transport", NAMES)
def test_who_makes_room_for_a_more_urgent_one(run, serve, transport: str):
    async def main():
        shedding = {"chosen": {"shed_load": "lowest-priority"}}
        async with serve(limits=Limits(max_queued=1), **shedding) as served:
            engine = served.front.engine
            for urgent in served.transports:
                engine.auto = False
                patient = asyncio.create_task(
                    served.over(transport).ask({"prompt": "x", "priority": 1})
                )
                await engine.until(lambda: bool(engine.waiting))
                other = asyncio.create_task(urgent.ask({"prompt": "x", "priority": 0}))
                told = await patient
                assert told.failure == Failure("RESOURCE_EXHAUSTED", FULL, None, 1.0)
                await engine.until(lambda: len(engine.waiting) == 1)
                engine.resume()
                assert (await other).failure is None

    run(main())


def test_an_urgent_request_is_no_less_so_over_another_transport(run, serve):
    """A newcomer that is less urgent than all who wait is the one that is refused."""

    async def main():
        shedding = {"chosen": {"shed_load": "lowest-priority"}}
        async with serve(limits=Limits(max_queued=1), **shedding) as served:
            engine = served.front.engine
            engine.auto = False
            first = asyncio.create_task(served.transports[0].ask({"prompt": "x"}))
            await engine.until(lambda: bool(engine.waiting))
            for each in served.transports:
                told = await each.ask({"prompt": "x", "priority": 1})
                assert told.failure == Failure("RESOURCE_EXHAUSTED", FULL, None, 1.0)
            engine.resume()
            assert (await first).failure is None
            assert engine.cancels() == []

    run(main())


def test_an_exception_that_nobody_expected(run, serve, monkeypatch):
    async def main():
        async with serve() as served:

            async def submit(*_: object) -> None:
                raise ValueError("secret path")

            for name in ("submit", "submit_all"):
                monkeypatch.setattr(served.front.generator, name, submit)
            for each in served.transports:
                with capture_logs() as logs:
                    failure = (await each.ask(LONG)).failure
                assert len(logs) == 1
                assert failure == Failure("INTERNAL", "Something went wrong in the server.", None)

    run(main())


def test_an_exception_that_nobody_expected_behind_the_first_text(run, serve, monkeypatch):
    """The answer that has begun is ended as a failed one, and nothing of the exception is told."""
    take = Generation.take
    said: list[Event] = []

    def take_once(generation: Generation) -> list[Event]:
        if said:
            raise ValueError("secret path")
        batch = take(generation)
        said.extend(event for event in batch if isinstance(event, Delta))
        return batch

    async def main():
        async with serve() as served:
            engine = served.front.engine
            served.front.says("abcdefghij")
            monkeypatch.setattr(Generation, "take", take_once)
            told = {}
            for each in served.transports:
                said.clear()
                engine.auto = False
                call = asyncio.create_task(each.ask(LONG))
                await engine.until(lambda: bool(engine.waiting))
                with capture_logs() as logs:
                    engine.step()
                    await until(lambda: bool(said))
                    engine.step()
                    told[each.name] = await call
                errors = [log["event"] for log in logs if log["log_level"] == "error"]
                assert len(errors) == 1, (each.name, errors)
                await engine.until(served.front.is_clean)
            failure = Failure("INTERNAL", "Something went wrong in the server.", None)
            assert alike(told, {0: "a"}) == failure

    run(main())


def test_a_service_that_drains(run, serve):
    async def main():
        async with serve() as served:
            assert await served.front.generator.drain(1)
            for each in served.transports:
                failure = (await each.ask(LONG)).failure
                assert failure == Failure("UNAVAILABLE", "The service is shutting down.", None, 1.0)

    run(main())
