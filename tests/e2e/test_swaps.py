"""A hundred changes of policies under load: no request is lost, and no text is another."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.json_format import ParseDict

from cadenza.policies.builtin import BUILTIN, DEFAULTS
from cadenza.policies.contract import hooks_of
from cadenza.policies.presets import PRESETS
from cadenza.v1 import policy_pb2 as pb
from cadenza.v1.policy_pb2_grpc import PolicyServiceStub
from tests.e2e.conftest import Serve
from tests.e2e.servers import Served
from tests.e2e.test_serving import gauges

NUM_STREAMS, NUM_SWAPS, NUM_TOKENS = 16, 100, 40
# Half of the streams have a seat, and not all of those keep their blocks
FLAGS = ("--max-num-seqs", "8", "--num-blocks", "26", "--max-model-len", "400", "--threads", "1")

PROMPTS = [
    f"Chapter {number}. In the year {1900 + 7 * number} a {animal} went to"
    for number, animal in enumerate(["cat", "dog", "fox", "owl"] * (NUM_STREAMS // 4))
]


def profiles() -> Iterator[dict[str, Any]]:
    """Presets, and every built-in policy alone in every decision that it can take, in turns."""
    presets = [{"preset": preset} for preset in PRESETS]
    single = [
        {"decisions": {hook: policy}}
        for policy, cls in BUILTIN.items()
        for hook in hooks_of(cls)
        if hook in DEFAULTS
    ]
    pairs = zip(cycle(presets), cycle(single), strict=False)
    return (profile for pair in pairs for profile in pair)


@dataclass
class Load:
    """Clients that stream the same prompts over and over until the test has seen enough."""

    served: Served
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    texts: list[tuple[int, str]] = field(default_factory=list)
    longest_gap_s: float = 0.0  # between two pieces of one stream

    async def run(self) -> None:
        """Each client finishes at least one stream."""
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(base_url=self.served.http, timeout=120, limits=limits) as http,
            asyncio.TaskGroup() as clients,
        ):
            for number in range(NUM_STREAMS):
                clients.create_task(self._client(http, number))

    async def _client(self, http: httpx.AsyncClient, number: int) -> None:
        while True:
            self.texts.append((number, await self._stream(http, number)))
            if self.enough.is_set():
                return

    async def _stream(self, http: httpx.AsyncClient, number: int) -> str:
        body = {
            "prompt": PROMPTS[number],
            "max_tokens": NUM_TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            "priority": number % 3,
            "stream": True,
        }
        tenant = {"x-gateway-inference-fairness-id": f"tenant-{number % 4}"}
        text, last_s = "", None
        async with http.stream("POST", "/v1/completions", json=body, headers=tenant) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    return text
                if line:
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    text += event["choices"][0]["text"]
                    now_s = time.monotonic()
                    self.longest_gap_s = max(self.longest_gap_s, now_s - (last_s or now_s))
                    last_s = now_s
        raise AssertionError("a stream ended without [DONE]")


async def swap(served: Served, count: int) -> float:
    """So many changes, by HTTP and gRPC in turns; the longest took so many seconds."""
    longest_s = 0.0
    async with (
        httpx.AsyncClient(base_url=served.http, timeout=60) as http,
        grpc.aio.insecure_channel(served.grpc) as channel,
    ):
        stub = PolicyServiceStub(channel)
        for number, profile in enumerate(islice(profiles(), count)):
            started_s = time.monotonic()
            if number % 2:
                response = await http.put("/v1/policies/profile", json=profile)
                assert response.status_code == 200, response.text
            else:
                named = {
                    hook: {"names": [policy]}
                    for hook, policy in profile.get("decisions", {}).items()
                }
                wanted = {"profile": {**profile, "decisions": named}}
                await stub.UseProfile(ParseDict(wanted, pb.UseProfileRequest()))
            longest_s = max(longest_s, time.monotonic() - started_s)
        report = (await http.get("/v1/policies")).json()
    assert report["live"]["faults"] == []
    assert report["live"]["quarantined"] == []
    return longest_s


@pytest.mark.extra
@pytest.mark.timeout(600)
def test_a_hundred_swaps_under_load_change_no_text(serve: Serve, tell: Callable[[str], None]):
    async def main() -> None:
        served = serve(*FLAGS)
        undisturbed = Load(served)
        undisturbed.enough.set()
        await undisturbed.run()
        wanted = dict(undisturbed.texts)
        assert len(wanted) == NUM_STREAMS
        assert len({*wanted.values()}) > NUM_STREAMS // 2, "a text in a wrong place would show"

        load = Load(served)
        running = asyncio.create_task(load.run())
        longest_s = await swap(served, NUM_SWAPS)
        load.enough.set()
        await running

        assert [text for number, text in load.texts if text != wanted[number]] == []
        assert gauges(served)["cadenza:num_preemptions_total"] > 0
        assert served.stop() == 0
        tell(
            f"{NUM_SWAPS} swaps, {len(load.texts)} streams, all texts equal; "
            f"longest swap {longest_s:.2f} s, longest gap {load.longest_gap_s:.2f} s, "
            f"undisturbed {undisturbed.longest_gap_s:.2f} s"
        )

    asyncio.run(main())
