"""Each field of a request shows in what the real model says, alike over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import pytest

from cadenza.v1 import generation_pb2 as pb
from cadenza.v1.generation_pb2_grpc import GenerationServiceStub
from tests.e2e.conftest import Served

PROMPT = "The capital of France is"

Ask = Callable[..., str]


@pytest.fixture(params=["http", "grpc"])
def ask(server: Served, request: pytest.FixtureRequest) -> Iterator[Ask]:
    """The text that a prompt is continued with, of at most 8 tokens, greedy."""
    usual = {"temperature": 0, "max_tokens": 8}
    if request.param == "http":
        yield lambda **fields: ask_http(server, {"prompt": PROMPT, **usual, **fields})
        return
    with grpc.insecure_channel(server.grpc) as channel:
        stub = GenerationServiceStub(channel)
        yield lambda **fields: ask_grpc(stub, {"text": PROMPT, **usual, **fields})


def post(server: Served, path: str, body: dict[str, Any]) -> Any:
    return httpx.post(f"{server.http}{path}", json=body, timeout=60).json()


def ask_http(server: Served, body: dict[str, Any]) -> str:
    answer = post(server, "/v1/completions", body)
    assert "choices" in answer, answer
    return str(answer["choices"][0]["text"])


def ask_grpc(stub: Any, fields: dict[str, Any]) -> str:
    if "logit_bias" in fields:
        fields["logit_bias"] = {int(key): bias for key, bias in fields["logit_bias"].items()}
    call = stub.Generate(pb.GenerateRequest(input=pb.GenerationInput(**fields)))
    return "".join(event.tokens.text for response in call for event in response.events)


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
    """Over both protocols, and not with a turn of its own."""
    turns = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is Par"},
    ]
    body = {"messages": turns, "continue_final_message": True, "temperature": 0, "max_tokens": 8}
    answer = post(server, "/v1/chat/completions", body)

    assert answer["choices"][0]["message"]["content"].startswith("is")
    chat = pb.Chat(messages=[pb.ChatMessage(**turn) for turn in turns], continue_final_message=True)
    with grpc.insecure_channel(server.grpc) as channel:
        said = ask_grpc(
            GenerationServiceStub(channel), {"chat": chat, "temperature": 0, "max_tokens": 8}
        )
    assert said == answer["choices"][0]["message"]["content"]


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
