"""Streams whose calls are cut at random and gone on with: no token is lost or comes twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest

from cadenza.service.limits import Limits, ResumptionLimits
from cadenza.v1 import generation_pb2 as pb
from cadenza.v1.generation_pb2_grpc import GenerationServiceStub
from cadenza.wire.arrays import view_ids
from cadenza.wire.messages import Submit
from tests.service.conftest import Front

AT_ONCE = 50
IN_A_SESSION = 10
# A thousand together; the first of them are enough for every day
SHARES = [
    range(100),
    *(pytest.param(range(i, i + 300), marks=pytest.mark.extra) for i in (100, 400, 700)),
]


class Replies:
    """What the engine says to each choice, which no other one is told: bytes of any text."""

    def __init__(self) -> None:
        self.said: dict[tuple[int, ...], dict[int, list[int]]] = defaultdict(dict)  # by prompt

    def __call__(self, submit: Submit) -> Sequence[int]:
        prompt = tuple(view_ids(submit.prompt).tolist())
        assert submit.choice not in self.said[prompt], "it is generated once"
        dice = random.Random(f"{prompt} {submit.choice}")
        said = [dice.randrange(256) for _ in range(dice.randint(1, 40))]
        self.said[prompt][submit.choice] = said
        return said


class CutStream:
    """One stream, and what has come of it over several calls."""

    def __init__(self, front: Front, replies: Replies, index: int) -> None:
        self._front, self._replies = front, replies
        self.dice = random.Random(index)
        self.id = f"stream-{index}"
        self.prompt = [index % 200, index // 200, 7]
        self.n = self.dice.choice([1, 1, 2, 3])
        self.events: list[pb.Event] = []

    @property
    def input(self) -> pb.GenerationInput:
        return pb.GenerationInput(token_ids=pb.TokenIds(ids=self.prompt), max_tokens=60, n=self.n)

    @property
    def is_done(self) -> bool:
        return bool(self.events) and self.events[-1].HasField("finished")

    @property
    def tokens(self) -> dict[int, list[int]]:
        tokens: dict[int, list[int]] = defaultdict(list)
        for event in self.events:
            if event.HasField("tokens"):
                tokens[event.tokens.choice] += event.tokens.token_ids
        return tokens

    def resume(self) -> pb.Resume:
        """By number, by tokens, or by both. Before any token the number alone says enough."""
        tokens = self.tokens
        counts = [len(tokens[choice]) for choice in range(self.n)]
        number = self.events[-1].number if self.events else 0
        way = self.dice.choice(["number", "both", "tokens"])
        if way == "tokens" and any(counts):
            return pb.Resume(tokens=counts)
        return pb.Resume(after_event=number, tokens=counts if way == "both" else ())

    def add(self, event: pb.Event) -> None:
        """Take in an event. What comes with no token may come again where tokens are the place."""
        last = self.events[-1].number if self.events else 0
        if event.number <= last:
            assert not event.HasField("tokens") or not event.tokens.token_ids
            return
        self.events.append(event)

    def check(self) -> None:
        assert [event.number for event in self.events] == [*range(1, len(self.events) + 1)]
        said = self._replies.said[tuple(self.prompt)]
        eos = self._front.engine.eos
        assert self.tokens == {choice: [*each, eos] for choice, each in said.items()}
        ends = Counter(
            event.choice_finished.choice
            for event in self.events
            if event.HasField("choice_finished")
        )
        assert ends == dict.fromkeys(range(self.n), 1)
        assert self.events[-1].finished.usage.completion_tokens == sum(
            len(each) + 1 for each in said.values()
        )


async def by_generate(stub: GenerationServiceStub, stream: CutStream) -> None:
    """Read a stream over Generate calls of which several are cut."""
    for cuts_left in range(stream.dice.randint(1, 4), -1, -1):
        while not stream.is_done:
            request = pb.GenerateRequest(stream_id=stream.id, input=stream.input)
            if stream.events:
                request.resume.CopyFrom(stream.resume())
            call = stub.Generate(request)
            left = stream.dice.randint(0, 12) if cuts_left else 1 << 30
            async for response in call:
                for event in response.events:
                    stream.add(event)
                left -= 1
                if left <= 0:
                    break
            call.cancel()
            if cuts_left:
                break


async def by_session(stub: GenerationServiceStub, streams: Sequence[CutStream]) -> None:
    """Read several streams over Sessions of which several are cut."""
    dice = streams[0].dice
    for cuts_left in range(dice.randint(1, 4), -1, -1):
        open_streams = {stream.id: stream for stream in streams if not stream.is_done}
        if not open_streams:
            return
        call = stub.Session()
        for stream in open_streams.values():
            submit = pb.Submit(request_id=stream.id, stream_id=stream.id, input=stream.input)
            if stream.events:
                submit.resume.CopyFrom(stream.resume())
            await call.write(pb.SessionRequest(submit=submit))
        left = dice.randint(0, 15) if cuts_left else 1 << 30
        while left and not all(stream.is_done for stream in open_streams.values()):
            left -= 1
            for event in (await call.read()).events:
                assert not event.HasField("failed"), event
                open_streams[event.request_id].add(event)
        call.cancel()


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("way", ["generate", "session"])
async def test_cut_streams_lose_no_token_and_double_none(serve_front, way: str, share: range):
    limits = Limits(max_queued=4096, resumption=ResumptionLimits(max_streams=len(share)))
    async with serve_front(limits=limits) as (front, stub):
        replies = front.engine.reply = Replies()
        streams = [CutStream(front, replies, index) for index in share]
        turns = asyncio.Semaphore(AT_ONCE if way == "generate" else AT_ONCE // IN_A_SESSION)

        async def one(index: int) -> None:
            async with turns:
                if way == "generate":
                    await by_generate(stub, streams[index])
                else:
                    await by_session(stub, streams[index : index + IN_A_SESSION])

        step = 1 if way == "generate" else IN_A_SESSION
        async with asyncio.TaskGroup() as tasks:
            for index in range(0, len(share), step):
                tasks.create_task(one(index))
        for stream in streams:
            stream.check()
        assert front.generator.metrics.streams_resumed["grpc"] > len(share) // 2
        assert not front.engine.cancels()
