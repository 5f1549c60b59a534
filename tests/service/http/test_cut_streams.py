"""Streams cut at random bytes and gone on with: no token is lost or comes twice."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest

from cadenza.service.limits import Limits, ResumptionLimits
from cadenza.service.tokenizer import Tokenizer
from cadenza.wire.arrays import view_ids
from cadenza.wire.messages import Submit

from .conftest import Served, request_bytes

AT_ONCE = 50
# A thousand together; the first of them are enough for every day
SHARES = [
    range(100),
    *(pytest.param(range(i, i + 300), marks=pytest.mark.extra) for i in (100, 400, 700)),
]
_CHARACTERS = "abc é漢\u0301😀"  # one to four bytes long
_EVENT = re.compile(rb"id: (\d+):([\d.]+)\ndata: (.*)\n\n")


class Replies:
    """What the engine says to each choice, which no other one is told: one token for each byte."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.said: dict[tuple[int, ...], dict[int, str]] = defaultdict(dict)  # by prompt
        self._tokenizer = tokenizer

    def __call__(self, submit: Submit) -> Sequence[int]:
        prompt = tuple(view_ids(submit.prompt).tolist())
        assert submit.choice not in self.said[prompt], "it is generated once"
        dice = random.Random(f"{prompt} {submit.choice}")
        said = "".join(dice.choice(_CHARACTERS) for _ in range(dice.randint(1, 20)))
        self.said[prompt][submit.choice] = said
        return self._tokenizer.encode_text(said)


class CutStream:
    """One stream, by a client whose connections break."""

    def __init__(self, served: Served, replies: Replies, index: int) -> None:
        self._served = served
        self._replies = replies
        self._dice = random.Random(index)
        self._id = f"stream-{index}"
        self._n = self._dice.choice([1, 1, 2, 3])
        self._body = {
            "prompt": [index % 200, index // 200, 7],
            "stream": True,
            "stream_id": self._id,
            "max_tokens": 100,
            "n": self._n,
        }
        self._received: list[tuple[int, str, bytes]] = []
        self.num_cuts = 0

    async def run(self) -> None:
        for _ in range(self._dice.randint(1, 4)):
            await self._connect(self._dice.choice([0, 100, 1000, 3000, 6000, 12000]))
        while not self._is_done:
            await self._connect(None)
        self._check()

    @property
    def _is_done(self) -> bool:
        return bool(self._received) and self._received[-1][2] == b"[DONE]"

    async def _connect(self, cut_after: int | None) -> None:
        """Go on until the end, or until so many bytes, roughly, have come."""
        if self._is_done:
            return
        head = request_bytes("/v1/completions", self._body)
        place = {}
        if self._received:
            number, offsets, _ = self._received[-1]
            place = f"last-event-id: {number}:{offsets}\r\n"
            head = head.replace(b"\r\n\r\n", f"\r\n{place}\r\n".encode(), 1)
            if self._dice.random() < 0.5:
                path = f"/v1/streams/{self._id}"
                head = f"GET {path} HTTP/1.1\r\nhost: x\r\n{place}\r\n".encode()
        reader, writer = await self._served.raw_bytes(head)
        data = b""
        wanted = None if cut_after is None else self._dice.randint(0, cut_after)
        while not data.endswith(b"\r\n0\r\n\r\n"):
            most = 1 << 16 if wanted is None else wanted - len(data)
            if most <= 0:
                self.num_cuts += 1
                break
            data += await reader.read(most)
        writer.transport.abort()
        assert b"HTTP/1.1 200 ".startswith(data[:13]), data[:300]
        for number, offsets, told in _EVENT.findall(data):
            self._received.append((int(number), offsets.decode(), told))

    def _check(self) -> None:
        numbers = [number for number, _, _ in self._received]
        assert numbers == [*range(1, len(numbers) + 1)], self._id
        said = self._replies.said[tuple(self._body["prompt"])]
        texts = dict.fromkeys(range(self._n), "")
        ends: Counter[int] = Counter()
        for _, offsets, told in self._received:
            if told != b"[DONE]":
                for choice in json.loads(told)["choices"]:
                    texts[choice["index"]] += choice["text"]
                    ends[choice["index"]] += choice["finish_reason"] is not None
            for choice, count in enumerate(map(int, offsets.split("."))):
                # A token is a byte; of a character that is not whole, and of EOS, no text is told
                so_far = said[choice].encode()[:count].decode(errors="ignore")
                assert texts[choice] == so_far, self._id
        assert texts == said
        assert [int(each) for each in offsets.split(".")] == [
            len(said[choice].encode()) + 1 for choice in range(self._n)
        ]
        assert ends == dict.fromkeys(range(self._n), 1)


@pytest.mark.parametrize("share", SHARES)
def test_cut_streams_lose_no_token_and_double_none(run, serve, share: range):
    async def main():
        limits = Limits(max_queued=4096, resumption=ResumptionLimits(max_streams=len(share)))
        async with serve(limits=limits) as served:
            replies = served.front.engine.reply = Replies(served.front.tokenizer)
            turns = asyncio.Semaphore(AT_ONCE)

            async def one(stream: CutStream) -> None:
                async with turns:
                    await stream.run()

            streams = [CutStream(served, replies, index) for index in share]
            async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
                for stream in streams:
                    tasks.create_task(one(stream))
            assert sum(stream.num_cuts for stream in streams) > len(share)
            assert served.front.generator.metrics.streams_resumed["http"] > len(share)
            assert not served.front.engine.cancels()
            assert served.front.is_clean()

    run(main())
