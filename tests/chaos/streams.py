"""Streams as their clients see them, and how two of one request differ."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

_WORDS = ("river", "night", "violin", "silver", "window", "music", "letter", "winter", "garden")
_LOOK_S = 0.01
_PATIENCE_S = 600.0
_KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "n": 2},
    {"temperature": 0.0, "stop": [" the end of it", "\n\n\n\n"]},
    {"temperature": 1.2, "top_p": 0.9, "presence_penalty": 0.5},
    {"temperature": 1.0, "logprobs": 1},
]


@dataclass(eq=False)
class Stream:
    """One request as its client saw it."""

    request: int
    tokens: dict[int, list[int]] = field(default_factory=dict)  # by choice
    text: dict[int, str] = field(default_factory=dict)
    error: str | None = None
    num_events: int = 0
    longest_gap_s: float = 0.0
    is_done: bool = False

    def differs_from(self, other: Stream) -> str | None:
        """In which of the three ways, if in any."""
        if self.error is not None or not self.is_done:
            return "lost"
        for choice, expected in other.tokens.items():
            told = self.tokens.get(choice, [])
            if len(told) != len(expected):
                return "lost" if len(told) < len(expected) else "duplicated"
            if told != expected or self.text[choice] != other.text[choice]:
                return "changed"
        return None


def requests(chance: random.Random, count: int) -> list[dict[str, Any]]:
    """Of all kinds that hold something back, or have a state of their own."""
    return [
        {
            "prompt": " ".join(chance.choices(_WORDS, k=chance.choice((8, 30, 120)))),
            "max_tokens": chance.randint(40, 120),
            "seed": chance.getrandbits(31),
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
            **_KINDS[number % len(_KINDS)],
        }
        for number in range(count)
    ]


async def follow(http: httpx.AsyncClient, body: dict[str, Any], stream: Stream) -> None:
    """Run one request to its end."""
    heard_s = time.monotonic()
    try:
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                stream.error = (await answer.aread()).decode()
            async for line in answer.aiter_lines():
                stream.is_done = stream.is_done or line == "data: [DONE]"
                if not line.startswith("data: {"):
                    continue
                now_s = time.monotonic()
                if stream.num_events:
                    stream.longest_gap_s = max(stream.longest_gap_s, now_s - heard_s)
                heard_s = now_s
                stream.num_events += 1
                _take(json.loads(line.removeprefix("data: ")), stream)
    except httpx.HTTPError as error:
        stream.error = repr(error)


def _take(event: dict[str, Any], stream: Stream) -> None:
    if "error" in event:
        stream.error = event["error"]["message"]
    for choice in event.get("choices", ()):
        index = choice["index"]
        stream.tokens.setdefault(index, []).extend(choice.get("token_ids") or ())
        stream.text[index] = stream.text.get(index, "") + choice["text"]


async def metric(http: httpx.AsyncClient, name: str, label: str = "") -> float:
    """What the service says of itself."""
    text = (await http.get("/metrics")).text
    [value] = re.findall(rf"^cadenza:{name}{{.*{label}.*}} (.*)$", text, re.MULTILINE)
    return float(value)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Look again and again: what is waited for happens in other processes.

    Raises:
        TimeoutError: it has not for longer than any machine needs.
    """
    async with asyncio.timeout(_PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 - no event comes from there
            await asyncio.sleep(_LOOK_S)


async def is_ready(http: httpx.AsyncClient) -> bool:
    return (await http.get("/ready")).status_code == 200
