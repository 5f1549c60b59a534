"""Clients that read slowly, leave, come back, ask twice, and take what they are owed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc
from google.protobuf.duration_pb2 import Duration

from cadenza.v1 import generation_pb2 as pb

from .asked import Asked, Told
from .calls import Call

GRACE_S = 2.0  # that a stream is kept which nobody reads
MAX_STREAM_BYTES = 8192  # which is a window of five tokens
_TOO_LATE = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class World(Protocol):
    """**Protocol:** what clients know of everything else."""

    chance: random.Random
    is_calm: bool  # nobody makes trouble any more

    def generate(self, request: pb.GenerateRequest, timeout_s: float | None = None) -> Call:
        """Begin a Generate call."""

    def session(self) -> Call:
        """Begin a Session call."""

    def judge_refusal(self, told: Told, code: int, *, is_retryable: bool) -> None:
        """A request has failed: raises AssertionError if nothing has come for which it may."""


@dataclass
class Client:
    """One client with its requests; `run` is its life."""

    world: World
    asked: Sequence[Asked]

    def __post_init__(self) -> None:
        self.chance = self.world.chance
        self.told = [Told(each) for each in self.asked]

    async def run(self) -> None:
        raise NotImplementedError

    async def _dawdle(self) -> None:
        """Read on at once, mostly."""
        dice = self.chance.random()
        if not self.world.is_calm and dice < 0.3:
            await asyncio.sleep(dice)

    def _judge_status(self, told: Told, call: Call) -> None:
        """A call has ended in place of its request."""
        assert call.status is not None
        code: int = call.status.value[0]
        is_retryable = call.status in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        )
        self.world.judge_refusal(told, code, is_retryable=is_retryable)


class Caller(Client):
    """Calls Generate, with a deadline or without."""

    leaves = False

    async def run(self) -> None:
        [told] = self.told
        call = self.world.generate(
            pb.GenerateRequest(input=told.asked.message), told.asked.timeout_s
        )
        hangs_up_after = self.chance.randint(0, 6) if self.leaves else None
        num_read = 0
        while (events := await call.read()) is not None:
            for event in events:
                told.hear(event)
            num_read += 1
            if hangs_up_after is not None and num_read > hangs_up_after:
                call.cut()
                return
            await self._dawdle()
        if call.status is not grpc.StatusCode.OK:
            assert not told.is_finished or call.status in _TOO_LATE
            self._judge_status(told, call)
        else:
            assert told.is_finished, "the call ends well, and the request does not"


class Leaver(Caller):
    """Hangs up."""

    leaves = True


class Sleeper(Client):
    """Calls Generate and does not read any more; it is cut off, and nobody else notices."""

    async def run(self) -> None:
        [told] = self.told
        call = self.world.generate(pb.GenerateRequest(input=told.asked.message))
        while call.is_served:  # noqa: ASYNC110 - as one does who does not look
            await asyncio.sleep(1.0)
        while (events := await call.read()) is not None:
            for event in events:
                told.hear(event)
        if not told.is_finished and call.status is not grpc.StatusCode.CANCELLED:
            self._judge_status(told, call)


class Returner(Client):
    """Reads a stream that it can come back to, by number or by tokens; perhaps twice at once."""

    stream_id = "s"

    async def run(self) -> None:
        [told] = self.told
        self._left: list[Call] = []
        call = self.world.generate(self._request(told))
        for _ in range(50):
            if await self._read(told, call):
                return
            if not self.world.is_calm and self.chance.random() < 0.5:
                await asyncio.sleep(0.7 * GRACE_S * self.chance.random())
            call = self.world.generate(self._request(told))
        raise AssertionError("it comes back again and again, and nothing is told")

    def _request(self, told: Told) -> pb.GenerateRequest:
        request = pb.GenerateRequest(stream_id=self.stream_id)
        if not told.number or self.chance.random() < 0.5:
            request.input.CopyFrom(told.asked.message)
        if told.number:
            resume = request.resume
            if not any(told.offsets) or self.chance.random() < 0.5:
                resume.after_event = told.number
            else:
                resume.tokens.extend(told.offsets)
        return request

    async def _read(self, told: Told, call: Call) -> bool:
        """Whether it is over, for the stream or for this client."""
        while (events := await call.read()) is not None:
            for event in events:
                told.hear(event)
            if not self.world.is_calm and self.chance.random() < 0.15:
                dice = self.chance.random()
                if dice < 0.7:
                    call.cut()
                self._left.append(call)
                return dice < 0.1  # for good; else a connection that is left is taken over
            await self._dawdle()
        if call.status is grpc.StatusCode.OK:
            assert told.is_finished, "the call ends well, and the stream does not"
            return True
        if told.number == 0 and call.status is grpc.StatusCode.NOT_FOUND:
            return False
        told.is_end_lost = any(left.has_unread("finished") for left in self._left)
        self._judge_status(told, call)
        return True


class Impostor(Client):
    """Begins a stream under the id of another's."""

    stream_id = "s"
    victim: Returner

    async def run(self) -> None:
        [told] = self.told
        for _ in range(40):
            if self.victim.told[0].is_accepted:
                break
            await asyncio.sleep(0.05)
        else:
            return  # it would be the first, and the other the impostor
        request = pb.GenerateRequest(stream_id=self.stream_id, input=told.asked.message)
        call = self.world.generate(request)
        while (events := await call.read()) is not None:
            for event in events:
                told.hear(event)
            await self._dawdle()
        if call.status not in (grpc.StatusCode.OK, grpc.StatusCode.ALREADY_EXISTS):
            self._judge_status(told, call)


class Talker(Client):
    """Has many requests on one Session: grants, cancels, asks twice under one name, half-closes."""

    async def run(self) -> None:
        call = self.world.session()
        self._call = call
        self._cancelled: set[int] = set()
        self._num_wrong = 0  # actions that must be refused
        self._num_refused = 0
        leaves = self.chance.random() < 0.2
        acting = asyncio.ensure_future(self._act())
        try:
            while (events := await call.read()) is not None:
                for event in events:
                    self._hear(event)
                if leaves and self.chance.random() < 0.1:
                    call.cut()
                    return
                await self._dawdle()
        finally:
            acting.cancel()
            await asyncio.gather(acting, return_exceptions=True)
        for told in self.told:
            assert not (told.asked.starves and told.is_finished), "its time is up long ago"
            if not told.is_over:
                assert call.status is not grpc.StatusCode.OK, "a request has no end"
                self._judge_status(told, call)
            elif told.failed is not None and told.asked not in self._given_up:
                code, is_retryable = told.failed.code, told.failed.retryable
                self.world.judge_refusal(told, code, is_retryable=is_retryable)
        if call.status is grpc.StatusCode.OK:
            assert self._num_refused == self._num_wrong, "what is wrong is not refused"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._given_up: set[Asked] = set()
        self._asked_twice: set[Asked] = set()

    def _hear(self, event: pb.Event) -> None:
        is_failed = event.WhichOneof("event") == "failed"
        told = self.told[int(event.request_id)] if event.request_id else None
        if told is None or (is_failed and told.is_over and told.asked in self._asked_twice):
            assert is_failed, "news of no request"
            self._num_refused += 1
        else:
            told.hear(event)

    async def _act(self) -> None:
        for index, told in enumerate(self.told):
            await self._submit(index, told)
            await self._pause()
        while running := [index for index, told in enumerate(self.told) if not told.is_over]:
            index = self.chance.choice(running)
            if self.world.is_calm:
                self._grant(index, 100)
                await asyncio.sleep(0.5)
                continue
            self._act_on(index)
            await self._pause()
        self._send(None)

    async def _submit(self, index: int, told: Told) -> None:
        asked = told.asked
        submit = pb.Submit(request_id=str(index), input=asked.message)
        if asked.credit is not None:
            submit.credit = asked.credit
            told.granted = asked.credit
        if asked.timeout_s is not None:
            submit.timeout.FromMilliseconds(int(1000 * asked.timeout_s))
        elif asked.extends:
            submit.timeout.FromMilliseconds(1500)
        self._send(pb.SessionRequest(submit=submit))
        if asked.extends:
            self._set_deadline(index)
        if asked.credit == 0 and not asked.is_poisoned and self.chance.random() < 0.5:
            # Without a token it cannot have ended
            self._send(pb.SessionRequest(submit=submit))
            self._asked_twice.add(asked)
            self._num_wrong += 1

    def _act_on(self, index: int) -> None:
        dice, name = self.chance.random(), str(index)
        told = self.told[index]
        if dice < 0.5:
            self._grant(index, self.chance.randint(1, 4))
        elif dice < 0.6:
            self._given_up.add(told.asked)
            self._send(pb.SessionRequest(cancel=pb.Cancel(request_id=name)))
        elif dice < 0.7:
            action = pb.Reprioritise(request_id=name, priority=self.chance.randint(-5, 5))
            self._send(pb.SessionRequest(reprioritise=action))
        elif dice < 0.75 and not told.asked.starves:
            self._set_deadline(index)
        elif dice < 0.85:
            self._send(pb.SessionRequest(cancel=pb.Cancel(request_id="nobody")))
            self._num_wrong += 1

    def _set_deadline(self, index: int) -> None:
        later = pb.SetDeadline(request_id=str(index), timeout=Duration(seconds=1000))
        self._send(pb.SessionRequest(set_deadline=later))

    def _grant(self, index: int, tokens: int) -> None:
        told = self.told[index]
        if told.asked.credit is not None and not told.asked.starves:
            told.granted += tokens
            credit = pb.Credit(request_id=str(index), tokens=tokens)
            self._send(pb.SessionRequest(credit=credit))

    async def _pause(self) -> None:
        await asyncio.sleep(0.2 * self.chance.random() ** 2)

    def _send(self, request: pb.SessionRequest | None) -> None:
        self._call.send(request)
