"""Random and hostile calls, and what must hold of their answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence, Set
from typing import Any

import grpc

from cadenza.v1 import generation_pb2 as pb
from cadenza.v1.generation_pb2_grpc import GenerationServiceStub
from tests.service.rpc.checked_service import serve_checked
from tests.service.rpc.fuzz_checks import ALLOWED, LIMIT_S, check_life, check_session
from tests.service.rpc.fuzzed_administration import Administrator
from tests.service.rpc.fuzzer import Fuzzer


class Service:
    """A server under test, and a client's calls to it."""

    def __init__(
        self, channel: grpc.aio.Channel, pass_time: Callable[[], None] = lambda: None
    ) -> None:
        """`pass_time` is called after each batch of calls."""
        self.seen: Counter[str] = Counter()
        self.pass_time = pass_time
        self.administrator = Administrator(channel, self.seen)
        self._stub = GenerationServiceStub(channel)
        self._raw = channel

    async def reference(self) -> list[tuple[int, str, list[int]]]:
        """What a few usual requests are answered, choice by choice: always the same."""
        answers = []
        for text in ("hello wall", "x" * 40):
            given = pb.GenerationInput(text=text, n=2, max_tokens=12, temperature=0.0)
            async with asyncio.timeout(LIMIT_S):
                call = self._stub.Generate(pb.GenerateRequest(input=given))
                events = [event async for response in call for event in response.events]
            for choice in range(2):
                tokens = [event.tokens for event in events if event.HasField("tokens")]
                mine = [part for part in tokens if part.choice == choice]
                ids = [token for part in mine for token in part.token_ids]
                answers.append((choice, "".join(part.text for part in mine), ids))
        return answers

    async def generate(self, seed: int) -> None:
        """One Generate, whole or given up; and now and then the same again."""
        fuzzer = Fuzzer(seed)
        message = fuzzer.message(pb.GenerateRequest)
        encoded = message.SerializeToString()
        if is_garbled := fuzzer.chance.random() < 0.1:
            encoded = fuzzer.garbled(encoded)
        is_resumed = is_garbled or message.HasField("resume")
        again = message.HasField("stream_id") and fuzzer.chance.random() < 0.3
        for _ in range(1 + again):
            timeout_s = fuzzer.chance.choice((None, None, None, None, None, 0.002, 5.0))
            gives_up = fuzzer.chance.random() < 0.1
            await self._generate(encoded, timeout_s, gives_up=gives_up, is_resumed=is_resumed)

    async def _generate(
        self, encoded: bytes, timeout_s: float | None, *, gives_up: bool, is_resumed: bool
    ) -> None:
        call = self._raw.unary_stream(
            "/cadenza.v1.GenerationService/Generate",
            response_deserializer=pb.GenerateResponse.FromString,
        )(encoded, timeout=timeout_s)
        events: list[pb.Event] = []
        async with asyncio.timeout(LIMIT_S):
            while (response := await _read(call)) is not None:
                events += response.events
                if gives_up:
                    call.cancel()
            code = await call.code()
        self.seen[code.name] += 1
        assert code.value[0] in self._allowed, f"{code}: {await call.details()}"
        assert all(event.request_id == "" for event in events)
        assert not any(event.HasField("failed") for event in events)
        self.administrator.ids += [each.accepted.id for each in events if each.HasField("accepted")]
        if code is grpc.StatusCode.OK and (events or not is_resumed):
            check_life(events, is_resumed=is_resumed)

    async def session(self, seed: int) -> None:
        """One Session of some actions: to its end, or given up."""
        fuzzer = Fuzzer(seed)
        call = self._raw.stream_stream(
            "/cadenza.v1.GenerationService/Session",
            response_deserializer=pb.SessionResponse.FromString,
        )()
        actions = [fuzzer.message(pb.SessionRequest) for _ in range(fuzzer.chance.randint(0, 16))]
        spoils = fuzzer.chance.random() < 0.1
        gives_up = fuzzer.chance.random() < 0.1
        actions += _grants(actions)
        reading = asyncio.create_task(_read_all(call))
        async with asyncio.timeout(LIMIT_S):
            try:
                for action in actions:
                    await call.write(action.SerializeToString())
                    await asyncio.sleep(0 if fuzzer.chance.random() < 0.8 else 0.003)
                if spoils:
                    await call.write(
                        fuzzer.garbled(actions[-1].SerializeToString() if actions else b"")
                    )
                if gives_up:
                    call.cancel()
                else:
                    await call.done_writing()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
                if not (spoils or gives_up):
                    raise
            events = await reading
            code = await call.code()
        self.seen[f"session {code.name}"] += 1
        wanted = {grpc.StatusCode.OK}
        wanted |= {grpc.StatusCode.INVALID_ARGUMENT} if spoils else set()
        wanted |= {grpc.StatusCode.CANCELLED} if gives_up else set()
        assert code in wanted, f"{code}: {await call.details()}"
        self._see(events)
        whole = not (spoils or gives_up)
        check_session(actions, events, whole=whole, allowed=self._allowed)

    @property
    def _allowed(self) -> Set[int]:
        """Codes that calls may end with now."""
        unavailable = grpc.StatusCode.UNAVAILABLE.value[0]
        return ALLOWED | ({unavailable} if self.administrator.has_drained else set())

    def _see(self, events: list[pb.Event]) -> None:
        for event in events:
            if event.HasField("finished"):
                self.seen["finished"] += 1
            if event.HasField("failed"):
                self.seen[f"failed {event.failed.code}"] += 1


async def _read(call: Any) -> Any:
    try:
        response = await call.read()
    except grpc.aio.AioRpcError:
        return None
    except asyncio.CancelledError:
        if call.cancelled():
            return None
        raise
    return None if response is grpc.aio.EOF else response


def _grants(actions: Sequence[pb.SessionRequest]) -> list[pb.SessionRequest]:
    """Credit for what would stay parked behind a half-close, for another Session to go on with."""
    submits = [action.submit for action in actions if action.submit.HasField("stream_id")]
    return [
        pb.SessionRequest(credit=pb.Credit(request_id=submit.request_id, tokens=1 << 30))
        for submit in submits
    ]


async def _read_all(call: Any) -> list[pb.Event]:
    events: list[pb.Event] = []
    while (response := await _read(call)) is not None:
        events += response.events
    return events


async def fuzz(first_seed: int, num: int, at_once: int = 12) -> Counter[str]:
    """`num` random calls: of ten, 7 Generates, 2 Sessions and one of an administrator.

    A few usual requests come in between.

    Raises:
        AssertionError: something did not hold; a note names the seed of the call.
    """
    async with (
        serve_checked() as checked,
        grpc.aio.insecure_channel(f"127.0.0.1:{checked.port}") as channel,
    ):
        service = Service(channel, pass_time=lambda: checked.timers.advance(1))
        await call_at_random(service, first_seed, num, at_once)
        service.seen["resumed"] = checked.generator.metrics.streams_resumed["grpc"]
        return service.seen


async def call_at_random(service: Service, first_seed: int, num: int, at_once: int) -> None:
    """As `fuzz`, of a service that is there."""
    expected = await service.reference()
    for begin in range(first_seed, first_seed + num, at_once):
        seeds = range(begin, min(begin + at_once, first_seed + num))
        async with asyncio.TaskGroup() as calls:
            for seed in seeds:
                calls.create_task(_one(service, seed))
        await service.administrator.restore()
        service.pass_time()
        if (begin - first_seed) // at_once % 8 == 0:
            assert await service.reference() == expected, f"after the seeds {seeds}"
    assert await service.reference() == expected


async def _one(service: Service, seed: int) -> None:
    if seed % 5 == 0:
        call = service.session
    elif seed % 8 == 1:
        call = service.administrator.call
    else:
        call = service.generate
    try:
        await call(seed)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
