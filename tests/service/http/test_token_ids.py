"""Ids of tokens, for clients that ask: those of the prompt, and those that make up the text."""

from __future__ import annotations

from typing import Any

import pytest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("logprobs", [None, 2])
def test_completions_tell_them_in_each_choice(run, serve, logprobs: int | None):
    async def main():
        async with serve() as served:
            served.front.says("a😀")
            [*said] = served.front.tokenizer.encode_text("a😀")
            body = {"prompt": [[5, 6], [7]], "n": 2, "logprobs": logprobs, "return_token_ids": True}
            answer = (await served.http.post(COMPLETIONS, json=body)).json()
            prompts = [choice["prompt_token_ids"] for choice in answer["choices"]]
            assert prompts == [[5, 6], [5, 6], [7], [7]]
            ids = [*said, served.front.engine.eos]
            assert [choice["token_ids"] for choice in answer["choices"]] == [ids] * 4

            *events, _ = await served.events(COMPLETIONS, body)
            parts = [part for event in events for part in event["choices"]]
            assert "prompt_token_ids" not in events[0]
            for index in range(4):
                own = [part for part in parts if part["index"] == index]
                assert own[0]["prompt_token_ids"] == prompts[index]
                assert all("prompt_token_ids" not in part for part in own[1:])
                assert joined(own) == ids

    run(main())


def joined(parts: list[dict[str, Any]]) -> list[int]:
    return [token for part in parts for token in part.get("token_ids", ())]


def test_chats_tell_those_of_the_prompt_beside_the_choices(run, serve):
    async def main():
        async with serve() as served:
            served.front.says("ab")
            ids = [*served.front.tokenizer.encode_text("ab"), served.front.engine.eos]
            body = {"messages": HI, "return_token_ids": True}
            answer = (await served.http.post(CHAT, json=body)).json()
            [choice] = answer["choices"]
            assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
            assert choice["token_ids"] == ids

            *events, _ = await served.events(CHAT, body)
            assert events[0]["prompt_token_ids"] == answer["prompt_token_ids"]
            assert all("prompt_token_ids" not in event for event in events[1:])
            assert joined([event["choices"][0] for event in events]) == ids

    run(main())


@pytest.mark.parametrize("given", [{}, {"return_token_ids": False}, {"return_token_ids": None}])
def test_nobody_else_sees_them(run, serve, given: dict[str, Any]):
    async def main():
        async with serve() as served:
            for path, prompt in ((CHAT, {"messages": HI}), (COMPLETIONS, {"prompt": "x"})):
                for stream in (False, True):
                    body = {**prompt, **given, "stream": stream}
                    assert "token_ids" not in (await served.http.post(path, json=body)).text

    run(main())
