"""Streams of the real model, joined, are its answers that are not streamed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.e2e.servers import Served
from tests.streams import CHAT, COMPLETIONS, assert_alike, body_of, share

SETTINGS = [
    {"temperature": 0, "repetition_penalty": 1.3, "min_tokens": 5},
    {"temperature": 1.3, "seed": 7, "logit_bias": {"198": 3, "2": -100}},
    {"temperature": 1, "seed": 8, "presence_penalty": 1, "frequency_penalty": 0.5, "min_p": 0.01},
]
OPTIONS: dict[str, list[Any]] = {
    "path": [CHAT, COMPLETIONS],
    "prompt": ["Repeat: 🐉 漢字 žluťoučký 🐉 漢字 žluťoučký 🐉"],
    "n": [None, 2],
    "stop": [None, ["e", "字"]],
    "logprobs": [None, 2],
    "echo": [None, True],
    "usage": [None, "always"],
    "settings": SETTINGS,
    "max_tokens": [16],
}


def check(server: Served, given: dict[str, Any]) -> None:
    path, body = body_of(given)
    url = f"{server.http}{path}"
    streamed = httpx.post(url, json={**body, "stream": True}, timeout=100)
    assert streamed.status_code == 200, streamed.text
    blocks = streamed.text.removesuffix("\n\n").split("\n\n")
    data = [block.removeprefix("data: ") for block in blocks]
    events = [part if part == "[DONE]" else json.loads(part) for part in data]
    whole = httpx.post(url, json={**body, "stream_options": None}, timeout=100)
    assert_alike(path, body, events, whole.json())


@pytest.mark.extra
@pytest.mark.parametrize("given", list(share(OPTIONS, 0)), ids=lambda given: body_of(given)[0])
def test_joined_streams_are_the_whole_answer_in_many_combinations(
    server: Served, given: dict[str, Any]
):
    check(server, given)
