"""Engines killed under live streams of the real model: `make chaos`.

Every stream is held against the same request undisturbed, token by token. Kills are aimed at
decodes, at prefills and at times when rows are swapped out; every tenth is a stop, which has to be
noticed as a hang. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.e2e.servers import Served, serving

AIMS = ("decode", "prefill", "swap")
FLAGS = (
    *("--dtype", "float32", "--max-engine-restarts", "65536"),
    *("--policy", "choose_preemption=swap", "--policy", "reserve_blocks=none"),
)
# Most requests grow to more; a single one, with its two choices, never to MIN_BLOCKS
BLOCKS_EACH, MIN_BLOCKS = 5, 64
NUM_REQUESTS = 48
SEEN_BETWEEN = 3  # events of each stream between two kills: who gets on is no suspect
SWAP_PATIENCE_S = 5.0
LOOK_S = 0.01
STOP_EVERY = 10


@dataclass(eq=False)
class Stream:
    """One request as its client saw it."""

    request: int
    tokens: dict[int, list[int]] = field(default_factory=dict)  # by choice
    text: dict[int, str] = field(default_factory=dict)
    error: str | None = None
    num_events: int = 0
    longest_gap_s: float = 0.0

    def differs_from(self, other: Stream) -> str | None:
        """In which of the three ways, if in any."""
        if self.error is not None:
            return "lost"
        for choice, expected in other.tokens.items():
            told = self.tokens.get(choice, [])
            if len(told) != len(expected):
                return "lost" if len(told) < len(expected) else "duplicated"
            if told != expected or self.text[choice] != other.text[choice]:
                return "changed"
        return None


def requests(chance: random.Random) -> list[dict[str, Any]]:
    """Of all kinds that hold something back, or have a state of their own."""
    words = [
        "river",
        "night",
        "violin",
        "silver",
        "window",
        "music",
        "letter",
        "winter",
        "garden",
        "stone",
    ]
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.8, "n": 2},
        {"temperature": 0.0, "stop": [" the end of it", "\n\n\n\n"]},
        {"temperature": 1.2, "top_p": 0.9, "presence_penalty": 0.5},
        {"temperature": 1.0, "logprobs": 1},
    ]
    return [
        {
            "prompt": " ".join(chance.choices(words, k=chance.choice((8, 30, 200)))),
            "max_tokens": chance.randint(40, 120),
            "seed": chance.getrandbits(31),
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
            **kinds[number % len(kinds)],
        }
        for number in range(NUM_REQUESTS)
    ]


async def follow(http: httpx.AsyncClient, body: dict[str, Any], stream: Stream) -> None:
    """Run one request to its end."""
    heard_s = time.monotonic()
    try:
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                now_s = time.monotonic()
                if stream.num_events:
                    stream.longest_gap_s = max(stream.longest_gap_s, now_s - heard_s)
                heard_s = now_s
                stream.num_events += 1
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    stream.error = event["error"]["message"]
                for choice in event.get("choices", ()):
                    index = choice["index"]
                    stream.tokens.setdefault(index, []).extend(choice.get("token_ids") or ())
                    stream.text[index] = stream.text.get(index, "") + choice["text"]
    except httpx.HTTPError as error:
        stream.error = repr(error)


class Chaos:
    """Clients that run requests one after another, and somebody who kills engines meanwhile."""

    def __init__(self, served: Served, http: httpx.AsyncClient, chance: random.Random) -> None:
        self._served = served
        self._http = http
        self._chance = chance
        self._bodies = requests(chance)
        self._live: set[Stream] = set()
        self._is_over = False
        self.ended: list[Stream] = []
        self.seen: Counter[str] = Counter()  # aims that were met

    async def undisturbed(self, num_streams: int) -> list[Stream]:
        """Each request once, as many at a time as later."""
        streams = [Stream(number) for number in range(len(self._bodies))]
        places = asyncio.Semaphore(num_streams)

        async def run(stream: Stream) -> None:
            async with places:
                await follow(self._http, self._bodies[stream.request], stream)

        await asyncio.gather(*(run(stream) for stream in streams))
        return streams

    async def run(self, kills: int, num_streams: int) -> None:
        """Returns when all streams have ended that had begun by the last kill."""
        clients = [asyncio.ensure_future(self._client()) for _ in range(num_streams)]
        for number in range(kills):
            aim = AIMS[number % len(AIMS)]
            await self._all_get_on()
            extra = await self._take_aim(aim)
            stops = number % STOP_EVERY == STOP_EVERY - 1
            began_s = time.monotonic()
            os.kill(self._served.engine_pid, signal.SIGSTOP if stops else signal.SIGKILL)
            if extra is not None:
                await extra
            sys.stdout.write(
                f"kill {number + 1}: {'stopped' if stops else 'killed'} in {aim}, "
                f"{len(self._live)} live, {await self._recovered(number + 1, began_s):.1f} s\n"
            )
            sys.stdout.flush()
        self._is_over = True
        await asyncio.gather(*clients)

    async def _client(self) -> None:
        while not self._is_over:
            await self._stream(self._chance.randrange(len(self._bodies)))

    async def _stream(self, request: int) -> None:
        stream = Stream(request)
        self._live.add(stream)
        await follow(self._http, self._bodies[request], stream)
        self._live.discard(stream)
        self.ended.append(stream)

    async def _all_get_on(self) -> None:
        marks = {stream: stream.num_events + SEEN_BETWEEN for stream in self._live}
        await _until(
            lambda: not any(s in self._live and s.num_events < n for s, n in marks.items())
        )

    async def _take_aim(self, aim: str) -> asyncio.Future[None] | None:
        if aim == "prefill":
            longest = max(range(len(self._bodies)), key=lambda i: len(self._bodies[i]["prompt"]))
            extra = asyncio.ensure_future(self._stream(longest))
            await asyncio.sleep(self._chance.uniform(0.005, 0.1))
            self.seen[aim] += 1
            return extra
        if aim == "swap":
            until_s = time.monotonic() + SWAP_PATIENCE_S
            while time.monotonic() < until_s:
                if await self._metric("num_requests_swapped"):
                    self.seen[aim] += 1
                    return None
            return None
        await asyncio.sleep(self._chance.uniform(0, 0.1))
        self.seen[aim] += 1
        return None

    async def _recovered(self, kills: int, began_s: float) -> float:
        while await self._metric("engine_restarts_total") < kills:  # noqa: ASYNC110 - a server's
            await asyncio.sleep(LOOK_S)
        while (await self._http.get("/ready")).status_code != 200:  # noqa: ASYNC110 - likewise
            await asyncio.sleep(LOOK_S)
        return time.monotonic() - began_s

    async def _metric(self, name: str) -> float:
        text = (await self._http.get("/metrics")).text
        [value] = re.findall(rf"^cadenza:{name}{{.*}} (.*)$", text, re.MULTILINE)
        return float(value)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - of other tasks, in a dozen places
        await asyncio.sleep(LOOK_S)


async def chaos(kills: int, num_streams: int, seed: int) -> dict[str, Any]:
    """What became of all streams."""
    chance = random.Random(seed)
    limits = httpx.Limits(max_connections=None)
    seats = ("--max-num-seqs", str(num_streams))
    blocks = ("--num-blocks", str(max(MIN_BLOCKS, BLOCKS_EACH * num_streams)))
    with serving(*FLAGS, *seats, *blocks) as served:
        async with httpx.AsyncClient(base_url=served.http, timeout=600, limits=limits) as http:
            work = Chaos(served, http, chance)
            expected = await work.undisturbed(num_streams)
            assert not [stream.error for stream in expected if stream.error]
            await work.run(kills, num_streams)
        status = served.stop()
    usual_s = max(stream.longest_gap_s for stream in expected)
    worst_s = max(stream.longest_gap_s for stream in work.ended)
    wrong = Counter(stream.differs_from(expected[stream.request]) for stream in work.ended)
    for stream in work.ended:
        if stream.error:
            sys.stderr.write(f"request {stream.request}: {stream.error}\n")
    return {
        "kills": kills,
        "streams": len(work.ended),
        **{kind: wrong[kind] for kind in ("lost", "duplicated", "changed")},
        "worst_pause_s": round(worst_s - usual_s, 3),
        "aims_met": dict(work.seen),
        "exit_status": status,
        "seed": seed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    result = asyncio.run(chaos(given.kills, given.streams, given.seed))
    sys.stdout.write(json.dumps(result) + "\n")
    wrong = result["lost"] or result["duplicated"] or result["changed"]
    return 1 if wrong or result["exit_status"] else 0


if __name__ == "__main__":
    sys.exit(main())
