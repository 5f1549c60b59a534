"""Three choices a request, streamed by the served process while its pool is too small for them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.conftest import Serve
from tests.e2e.servers import Served
from tests.e2e.test_serving import is_idle, until

NUM_CHOICES = 3
NUM_TOKENS = 40
PROMPT_TOKENS = (3, 17, 32, 40)
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.8, "seed": 2, "top_p": 0.9, "presence_penalty": 0.7},
    {"temperature": 0.9, "seed": 3, "frequency_penalty": 0.9},
    {"temperature": 0.7, "seed": 4, "repetition_penalty": 1.3},
]
ONE_THREAD = ("--threads", "1")
SMALL = (
    *("--num-blocks", "16", "--swap-space", "0.05"),
    *("--policy", "reserve_blocks=none", "--policy", "choose_preemption=swap"),
)


@dataclass
class Streamed:
    """What one stream brought."""

    texts: dict[int, str] = field(default_factory=dict)  # by index
    reasons: dict[int, str] = field(default_factory=dict)
    usage: dict[str, int] = field(default_factory=dict)


def stream(server: Served, prompt: list[int], sampling: dict[str, Any]) -> Streamed:
    """One request, read to its end; nothing may follow the end of a choice, or of the stream."""
    streamed = Streamed()
    for event in events(server, {"prompt": prompt, **sampling}):
        assert not streamed.usage, "something arrived after the usage"
        for choice in event["choices"]:
            index = choice["index"]
            assert index not in streamed.reasons, "something arrived after the end"
            streamed.texts[index] = streamed.texts.get(index, "") + choice["text"]
            if choice["finish_reason"] is not None:
                streamed.reasons[index] = choice["finish_reason"]
        if not event["choices"]:
            streamed.usage = event["usage"]
    return streamed


def events(server: Served, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    whole = {
        "n": NUM_CHOICES,
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **body,
    }
    with httpx.stream("POST", f"{server.http}/v1/completions", json=whole, timeout=110) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    yield from map(json.loads, lines)


def stream_all(server: Served) -> list[Streamed]:
    """All requests at once, each on a connection of its own."""
    chance = np.random.default_rng(6)
    prompts = [chance.integers(100, 40_000, length).tolist() for length in PROMPT_TOKENS]
    with ThreadPoolExecutor(len(prompts)) as clients:
        return list(clients.map(stream, [server] * len(prompts), prompts, SAMPLING))


def num_swaps(server: Served) -> float:
    metrics = httpx.get(f"{server.http}/metrics").text
    found = re.search(r'num_preemptions_by_kind_total\{kind="swap".*\} (\S+)', metrics)
    assert found, metrics
    return float(found[1])


@pytest.mark.timeout(240)
def test_three_streamed_choices_survive_swaps(serve: Serve):
    small = serve(*SMALL, *ONE_THREAD)

    streamed = stream_all(small)

    swaps = num_swaps(small)
    until(small, is_idle)
    assert small.stop() == 0
    assert swaps > 3
    for prompt_tokens, each in zip(PROMPT_TOKENS, streamed, strict=True):
        assert set(each.texts) == set(range(NUM_CHOICES))
        assert len(set(each.texts.values())) == NUM_CHOICES
        assert each.reasons == dict.fromkeys(range(NUM_CHOICES), "length")
        assert each.usage["prompt_tokens"] == prompt_tokens
        assert each.usage["completion_tokens"] == NUM_CHOICES * NUM_TOKENS
    roomy = serve(*ONE_THREAD)
    assert streamed == stream_all(roomy)
    assert num_swaps(roomy) == 0
    assert roomy.stop() == 0
