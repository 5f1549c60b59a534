"""/tokenize and /detokenize over real sockets."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cadenza.service.limits import Limits

from .conftest import OpenServed

MESSAGES = [{"role": "user", "content": "hello <|end|>"}]


def test_a_prompt_becomes_what_the_engine_would_read(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            body = {"model": "tiny", "prompt": "hello"}
            told = (await served.http.post("/tokenize", json=body)).json()
            await served.http.post("/v1/completions", json={**body, "max_tokens": 1})
            tokenizer = served.front.tokenizer

            ids = tokenizer.encode_text("hello")
            assert told == {
                "count": len(ids),
                "max_model_len": 256,
                "tokens": ids,
                "token_strs": None,
            }
            [submit] = served.front.engine.submits()
            assert len(submit.prompt) == 4 * len(ids)

    run(main())


def test_messages_become_what_the_engine_would_read(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            body = {"messages": MESSAGES, "add_generation_prompt": True, "return_token_strs": True}
            told = (await served.http.post("/tokenize", json=body)).json()
            await served.http.post("/v1/chat/completions", json=body)

            [submit] = served.front.engine.submits()
            assert len(submit.prompt) == 4 * told["count"]
            assert told["token_strs"][0] == "<|im_start|>"
            assert "<|end|>" not in told["token_strs"], "a client cannot forge a control token"
            assert len(told["token_strs"]) == len(told["tokens"]) == told["count"]

    run(main())


def test_tokens_become_their_text_again(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            for text in ("hello wörld", "<|im_start|>x<|end|>", ""):
                body = {"model": "alias", "prompt": text}
                ids = served.front.tokenizer.encode_text(text)
                if text:
                    ids = (await served.http.post("/tokenize", json=body)).json()["tokens"]
                response = await served.http.post("/detokenize", json={"tokens": ids})
                assert response.json() == {"prompt": text}

    run(main())


def test_more_tokens_than_the_context_has_are_counted(run, serve: OpenServed):
    async def main() -> None:
        async with serve(max_model_len=8) as served:
            response = await served.http.post("/tokenize", json={"prompt": "x" * 9})
            assert response.json()["count"] == 9
            response = await served.http.post("/detokenize", json={"tokens": [7] * 9})
            assert response.status_code == 200

    run(main())


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, 400, "prompt"),
        ("/tokenize", {"prompt": ["x"]}, 400, "prompt"),
        ("/tokenize", {"prompt": ""}, 400, "prompt"),
        ("/tokenize", {"prompt": "x" * 10_000}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "model": "gpt"}, 404, "model"),
        ("/tokenize", {"prompt": "x", "return_token_strs": 1}, 400, "return_token_strs"),
        ("/tokenize", {"prompt": "x", "add_special_tokens": "no"}, 400, "add_special_tokens"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"messages": [{"role": "tool", "content": "x"}]}, 400, "messages"),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "x"}, 400, "chat_template"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": "12"}, 400, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [1.0]}, 400, "tokens"),
        ("/detokenize", {"tokens": [True]}, 400, "tokens"),
        ("/detokenize", {"tokens": [10**30]}, 400, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "gpt"}, 404, "model"),
    ],
)
def test_bad_input_is_named(run, serve: OpenServed, path, body, status, param):
    async def main() -> None:
        async with serve() as served:
            response = await served.http.post(path, json=body)
            assert response.status_code == status, response.text
            assert response.json()["error"]["param"] == param
            assert served.front.is_clean()

    run(main())


def test_a_lone_surrogate_is_no_text(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            response = await served.http.post("/tokenize", content=rb'{"prompt": "\ud800"}')
            assert response.status_code == 400
            assert response.json()["error"]["param"] in ("prompt", None)

    run(main())


def test_too_many_tokens_are_refused(run, serve: OpenServed, monkeypatch):
    async def main() -> None:
        async with serve(max_model_len=8) as served:
            monkeypatch.setattr("cadenza.service.generator._MANY_TOKENS", 10)
            for path, body, param in (
                ("/tokenize", {"prompt": "x" * 11}, "prompt"),
                ("/detokenize", {"tokens": [1] * 11}, "tokens"),
            ):
                response = await served.http.post(path, json=body)
                assert response.status_code == 400
                assert "at most 10" in response.json()["error"]["message"]
                assert response.json()["error"]["param"] == param

    run(main())


def test_callers_take_places_in_the_queue(run, serve: OpenServed, monkeypatch):
    async def main() -> None:
        async with serve(limits=Limits(max_queued=1)) as served:
            entered, leave = threading.Event(), threading.Event()

            def slow(*_: object, **__: object) -> list[int]:
                entered.set()
                leave.wait(10)
                return [1]

            monkeypatch.setattr(served.front.tokenizer, "encode_text", slow)
            first = asyncio.create_task(served.http.post("/tokenize", json={"prompt": "x"}))
            await asyncio.to_thread(entered.wait, 10)
            for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
                refused = await served.http.post(path, json=body)
                assert refused.status_code == 503
                assert refused.json()["error"]["code"] == "queue_full"
            leave.set()
            assert (await first).json()["tokens"] == [1]
            assert served.front.is_clean()

    run(main())


def test_a_dead_engine_has_no_vocabulary(run, serve: OpenServed):
    async def main() -> None:
        async with serve() as served:
            served.front.engine.die()
            await served.front.client.lost()
            for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
                assert (await served.http.post(path, json=body)).status_code == 503

    run(main())
