"""Clients that leave by the thousand: afterwards the service holds what it held before.

The first thousand warm up: what they leave behind, of pools and caches, is there once.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx

from tests.chaos.measured_server import Figures, MeasuredServer, measured
from tests.chaos.parts import Outcome, Scale
from tests.chaos.streams import metric, until

WARM_UP = 1_000
MOST_GROWTH_KIB = 64 << 10  # of either process: allocators keep some of what was free for a moment
RESTS_S = 30.0
GAUGES = ("num_requests_running", "num_requests_waiting", "num_requests_queued")


async def run(scale: Scale) -> Outcome:
    """All kinds of clients at once, on one service."""
    async with (
        measured("demo") as server,
        httpx.AsyncClient(base_url=server.http, timeout=60) as http,
    ):
        await _cancel(server, min(WARM_UP, scale.cancels), scale.seed)
        before = await _at_rest(server, http)
        await _cancel(server, scale.cancels, scale.seed + 1)
        after = await _at_rest(server, http)
        held = await metric(http, "kv_cache_usage_perc")
    figures = {
        "cancels": scale.cancels,
        "cancels_left": {
            "tasks": after.tasks - before.tasks,
            "descriptors": after.descriptors - before.descriptors,
            "blocks_share": held,
            "front_mb": round((after.front_kib - before.front_kib) / 1024, 1),
            "engine_mb": round((after.engine_kib - before.engine_kib) / 1024, 1),
        },
    }
    return Outcome(figures, _wrong(before, after, held))


def _wrong(before: Figures, after: Figures, held: float) -> list[str]:
    wrong = [
        f"{name} were {getattr(before, name)} and are {getattr(after, name)}"
        for name in ("tasks", "descriptors")
        if getattr(after, name) > getattr(before, name)
    ]
    if held:
        wrong.append(f"{held:.1%} of the blocks are held by nobody")
    for name in ("front_kib", "engine_kib"):
        grown = getattr(after, name) - getattr(before, name)
        if grown > MOST_GROWTH_KIB:
            wrong.append(f"{name} has grown by {grown}")
    return wrong


async def _cancel(server: MeasuredServer, count: int, seed: int) -> None:
    program = str(Path(__file__).with_name("cancelling.py"))
    arguments = (str(server.http_port), server.grpc, str(count), str(seed))
    client = await asyncio.create_subprocess_exec(sys.executable, "-P", program, *arguments)
    assert await client.wait() == 0, "the clients failed"


async def _at_rest(server: MeasuredServer, http: httpx.AsyncClient) -> Figures:
    """Once nobody's requests are there, and no connection but ours; TimeoutError if never."""

    async def is_empty() -> bool:
        return not sum([await metric(http, name) for name in GAUGES])

    async with asyncio.timeout(RESTS_S):
        await until(is_empty)
        return await server.settled()
