"""Engines killed under live streams, each of which is held against the same request undisturbed.

Kills are aimed at decodes, at prefills and at times when rows are swapped out; every tenth is a
stop, which has to be noticed as a hang.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter

import httpx

from tests.chaos.parts import Outcome, Scale
from tests.chaos.streams import Stream, follow, is_ready, metric, requests, until
from tests.e2e.servers import Served, serving

AIMS = ("decode", "prefill", "swap")
FLAGS = (
    *("--dtype", "float32", "--max-engine-restarts", "65536"),
    *("--policy", "choose_preemption=swap", "--policy", "reserve_blocks=none"),
)
# On average requests grow to 9, so that some are swapped out; a single one, with its two choices,
# never grows to MIN_BLOCKS
BLOCKS_EACH, MIN_BLOCKS = 7, 64
NUM_REQUESTS = 48
SEEN_BETWEEN = 3  # events of each stream between two kills: who gets on is no suspect
SWAP_PATIENCE_S = 5.0
STOP_EVERY = 10


class Kills:
    """Clients that run requests one after another, and somebody who kills engines meanwhile."""

    def __init__(self, served: Served, http: httpx.AsyncClient, chance: random.Random) -> None:
        self._served = served
        self._http = http
        self._chance = chance
        self._bodies = requests(chance, NUM_REQUESTS)
        self._live: set[Stream] = set()
        self._extras: list[asyncio.Future[None]] = []  # streams besides those of the clients
        self._is_over = False
        self.ended: list[Stream] = []
        self.aims: Counter[str] = Counter()  # that were met
        self.recovered_s: list[float] = []  # after each kill

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
            await self._take_aim(aim)
            stops = number % STOP_EVERY == STOP_EVERY - 1
            live, began_s = len(self._live), time.monotonic()
            os.kill(self._served.engine_pid, signal.SIGSTOP if stops else signal.SIGKILL)
            self.recovered_s.append(await self._recovered(number + 1, began_s))
            sys.stdout.write(
                f"kill {number + 1}: {'stopped' if stops else 'killed'} in {aim}, "
                f"{live} live, {self.recovered_s[-1]:.1f} s\n"
            )
            sys.stdout.flush()
        self._is_over = True
        await asyncio.gather(*clients, *self._extras)

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

        async def have() -> bool:
            return not any(s in self._live and s.num_events < n for s, n in marks.items())

        await until(have)

    async def _take_aim(self, aim: str) -> None:
        if aim == "swap":
            until_s = time.monotonic() + SWAP_PATIENCE_S
            while not await metric(self._http, "num_requests_swapped"):
                if time.monotonic() > until_s:
                    return
        elif aim == "prefill":
            longest = max(range(len(self._bodies)), key=lambda i: len(self._bodies[i]["prompt"]))
            self._extras.append(asyncio.ensure_future(self._stream(longest)))
            await asyncio.sleep(self._chance.uniform(0.005, 0.1))
        else:
            await asyncio.sleep(self._chance.uniform(0, 0.1))
        self.aims[aim] += 1

    async def _recovered(self, kills: int, began_s: float) -> float:
        """Seconds until the next engine serves."""

        async def is_back() -> bool:
            restarts = await metric(self._http, "engine_restarts_total")
            return restarts >= kills and await is_ready(self._http)

        await until(is_back)
        return time.monotonic() - began_s


async def run(scale: Scale) -> Outcome:
    """Every stream that ended is told from the same request undisturbed."""
    limits = httpx.Limits(max_connections=None)
    seats = ("--max-num-seqs", str(2 * scale.streams))
    blocks = ("--num-blocks", str(max(MIN_BLOCKS, BLOCKS_EACH * scale.streams)))
    with serving(*FLAGS, *seats, *blocks) as served:
        async with httpx.AsyncClient(base_url=served.http, timeout=600, limits=limits) as http:
            work = Kills(served, http, random.Random(scale.seed))
            expected = await work.undisturbed(scale.streams)
            assert not [stream.error for stream in expected if stream.error]
            await work.run(scale.kills, scale.streams)
        status = served.stop()
    return _outcome(scale, work, expected, status)


def _outcome(scale: Scale, work: Kills, expected: list[Stream], status: int) -> Outcome:
    usual_s = max(stream.longest_gap_s for stream in expected)
    worst_s = max(stream.longest_gap_s for stream in work.ended)
    kinds = Counter(stream.differs_from(expected[stream.request]) for stream in work.ended)
    wrong = [
        f"request {stream.request} was {kind}: {stream.error}"
        for stream in work.ended
        if (kind := stream.differs_from(expected[stream.request]))
    ]
    if status:
        wrong.append(f"the service left with status {status}")
    figures = {
        "kills": scale.kills,
        **{kind: kinds[kind] for kind in ("lost", "duplicated", "changed")},
        "worst_pause_s": round(worst_s - usual_s, 3),
        "median_recovery_s": round(statistics.median(work.recovered_s), 3),
        "streams": len(work.ended),
        "aims_met": dict(work.aims),
        "seed": scale.seed,
    }
    return Outcome(figures, wrong)
