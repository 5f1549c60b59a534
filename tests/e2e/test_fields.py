"""Each field of a request shows in what the real model says, alike over every transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.e2e.servers import Served
from tests.streams import pairs
from tests.transports import Told, connected

PROMPT = "The capital of France is"

Ask = Callable[..., str]


@pytest.fixture
def ask(server: Served) -> Ask:
    """What a prompt is continued with, greedily, by at most 8 tokens; over every transport."""

    def ask(**fields: Any) -> str:
        [text] = same(server, {"prompt": PROMPT, "temperature": 0, "max_tokens": 8, **fields}).texts
        return text

    return ask


def same(server: Served, fields: dict[str, Any]) -> Told:
    """The answer to a request that is sent over every transport at once; all must be the same."""

    async def main() -> list[Told]:
        async with (
            httpx.AsyncClient(base_url=server.http, timeout=60) as http,
            connected(http, server.grpc) as transports,
        ):
            return await asyncio.gather(*(each.ask(fields) for each in transports))

    first, *others = told = asyncio.run(main())
    for each in told:
        assert each.failure is None
        assert each.usage is not None
        del each.usage["cached_tokens"]  # by then another may have left them
    assert others == [first] * 3
    return first


def post(server: Served, path: str, body: dict[str, Any]) -> Any:
    return httpx.post(f"{server.http}{path}", json=body, timeout=60).json()


def test_the_model_says_paris_unless_it_may_not(ask: Ask):
    assert "Paris" in ask()
    assert "Paris" not in ask(bad_words=["Paris"])


def test_what_is_allowed_is_all_that_comes(ask: Ask):
    assert ask(allowed_token_ids=[504], max_tokens=3) == 3 * ask(
        logit_bias={"504": 100}, max_tokens=1
    )


def test_a_strong_bias_decides(ask: Ask):
    favoured = ask(logit_bias={"700": 100}, max_tokens=4)
    assert favoured == 4 * ask(allowed_token_ids=[700], max_tokens=1)
    assert ask(logit_bias={"700": -100}) == ask()


@pytest.mark.parametrize("min_tokens", [0, 1, 4])
def test_the_end_comes_no_sooner_than_the_minimum(ask: Ask, min_tokens: int):
    """The stop token is the model's favourite all along."""
    said = ask(logit_bias={"700": 100}, stop_token_ids=[700], min_tokens=min_tokens)
    plain = ask(bad_words=[ask(allowed_token_ids=[700], max_tokens=1)], max_tokens=min_tokens or 1)
    assert said == (plain if min_tokens else "")


def test_a_stop_string_is_told_where_it_is_wanted(ask: Ask):
    assert ask(stop=["Paris"]).strip() == ""
    assert ask(stop=["Paris"], include_stop_str_in_output=True).endswith("Paris")


def test_control_tokens_have_text_where_it_is_wanted(ask: Ask):
    end = {"logit_bias": {"2": 100}, "ignore_eos": True, "max_tokens": 2}  # <|im_end|>

    assert ask(**end) == ""
    assert ask(**end, skip_special_tokens=False) == 2 * "<|im_end|>"


def test_a_truncated_prompt_asks_something_else(ask: Ask):
    assert ask(truncate_prompt_tokens=2) != ask() == ask(truncate_prompt_tokens=50)
    assert ask(truncate_prompt_tokens=2) != ask(truncate_prompt_tokens=2, truncation_side="right")


def test_a_chat_goes_on_with_what_the_assistant_said(server: Served):
    """And not with a turn of its own."""
    turns = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is Par"},
    ]
    fields = {"messages": turns, "continue_final_message": True, "temperature": 0, "max_tokens": 8}
    [text] = same(server, fields).texts
    assert text.startswith("is")


OPTIONS: dict[str, list[Any]] = {
    "prompt": [
        {"prompt": "Repeat: 🐉 漢字 žluťoučký 🐉 漢字 žluťoučký 🐉"},
        {"messages": [{"role": "user", "content": "Say 🐉 漢字 žluťoučký"}]},
    ],
    "n": [None, 3],
    "stop": [None, ["e", "字"]],
    "include_stop_str_in_output": [None, True],
    "logprobs": [None, 0, 3],
    "echo": [None, True],
    "settings": [
        {"temperature": 0, "repetition_penalty": 1.3, "min_tokens": 5},
        {"temperature": 1.3, "seed": 7, "logit_bias": {"198": 3, "2": -100}},
        {"temperature": 1, "seed": -8, "presence_penalty": 1, "frequency_penalty": 0.5},
        {"temperature": 1, "seed": 9, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "ignore_eos": True},
    ],
}


@pytest.mark.parametrize("given", pairs(OPTIONS), ids=str)
def test_an_answer_is_the_same_over_every_transport(server: Served, given: dict[str, Any]):
    """Every two values of different options meet."""
    fields = {**given, **given["prompt"], **given["settings"], "max_tokens": 16}
    del fields["settings"]
    if "messages" in fields:
        del fields["prompt"]
    told = same(server, fields)
    assert len(told.choices) == (given["n"] or 1)
    if given["logprobs"] is not None:
        assert all(choice.logprobs for choice in told.choices.values())


def test_a_prompt_is_scored_as_the_model_would_have_continued_it(server: Served):
    """What is echoed has the log-probabilities that generating it had, cached or not."""
    said = {"prompt": PROMPT, "temperature": 0, "max_tokens": 12, "logprobs": 3}
    [first] = post(server, "/v1/completions", said)["choices"]
    again = {"prompt": PROMPT + first["text"], "echo": True, "logprobs": 3, "max_tokens": 0}
    for _ in range(2):
        [scored] = post(server, "/v1/completions", again)["choices"]

        assert scored["text"] == PROMPT + first["text"]
        assert scored["logprobs"]["tokens"][-12:] == first["logprobs"]["tokens"]
        assert scored["logprobs"]["token_logprobs"][-12:] == first["logprobs"]["token_logprobs"]
        assert scored["logprobs"]["top_logprobs"][-12:] == first["logprobs"]["top_logprobs"]
        assert scored["logprobs"]["token_logprobs"][0] is None


def test_ranks_of_a_greedy_answer_are_one(server: Served):
    said = {"prompt": PROMPT, "temperature": 0, "max_tokens": 12}
    [first] = post(server, "/v1/completions", said)["choices"]
    body = {"prompt": PROMPT + first["text"], "prompt_logprobs": 0, "max_tokens": 0}
    [scored] = post(server, "/v1/completions", body)["choices"]

    assert scored["prompt_logprobs"][0] is None
    ranks = [own["rank"] for entry in scored["prompt_logprobs"][-12:] for own in entry.values()]
    assert ranks == [1] * 12


HOT = {"temperature": 1.5, "seed": 5}
# So that tokens come again, but not one of them alone
FEW = {"allowed_token_ids": [*range(700, 732)], "max_tokens": 24, "temperature": 5}


@pytest.mark.parametrize(
    ("beside", "extreme"),
    [
        ({}, {"temperature": 0.2}),
        ({}, {"seed": 6}),
        ({}, {"top_k": 1}),
        ({}, {"top_p": 1e-3}),
        ({}, {"min_p": 1.0}),
        (FEW, {"presence_penalty": 2.0}),
        (FEW, {"frequency_penalty": 2.0}),
        ({}, {"repetition_penalty": 0.01}),
    ],
    ids=lambda fields: next(iter(fields), ""),
)
def test_no_field_is_accepted_and_ignored(
    ask: Ask, beside: dict[str, Any], extreme: dict[str, Any]
):
    assert ask(**{**HOT, **beside, **extreme}) != ask(**{**HOT, **beside})


@pytest.mark.parametrize("greedy", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}])
def test_a_filter_that_keeps_one_token_is_greedy(ask: Ask, greedy: dict[str, Any]):
    assert ask(**HOT, **greedy) == ask()
