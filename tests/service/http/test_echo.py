"""The prompt in the answer: its text, its log-probabilities, and nothing but these."""

from __future__ import annotations

from typing import Any

import pytest

from cadenza.service.http.logprobs import MAX_POSITIONS

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Sure: "}]


async def whole(served: Any, path: str, body: dict[str, Any]) -> Any:
    response = await served.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def streamed(served: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Completions' choices as a stream tells them, joined."""
    events = await served.events(COMPLETIONS, body)
    assert events.pop() == "[DONE]"
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for part in event["choices"]:
            told = choices.setdefault(part["index"], {"index": part["index"], "text": ""})
            assert told.get("finish_reason") is None
            told["text"] += part["text"]
            told["finish_reason"], told["stop_reason"] = part["finish_reason"], part["stop_reason"]
            told.setdefault("logprobs", None)
            if part["logprobs"]:
                told["logprobs"] = told["logprobs"] or {name: [] for name in part["logprobs"]}
                for name, values in part["logprobs"].items():
                    told["logprobs"][name] += values
    return [choices[index] for index in sorted(choices)]


@pytest.mark.parametrize("prompt", ["hello ", [40, 70, 30], ["a", [5, 6]], "příliš 😀"])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
@pytest.mark.parametrize("n", [1, 3])
def test_every_choice_begins_with_its_prompt(run, serve, prompt, logprobs, n):
    async def main():
        async with serve() as served:
            served.front.says("wörld 😀")
            body = {"prompt": prompt, "logprobs": logprobs, "n": n, "max_tokens": 20}
            plain = (await whole(served, COMPLETIONS, body))["choices"]
            answer = await whole(served, COMPLETIONS, {**body, "echo": True})
            choices = answer["choices"]

            prompts = prompt if isinstance(prompt, list) and len(prompt) == 2 else [prompt]
            decode = served.front.tokenizer.decode
            texts = [one if isinstance(one, str) else decode(one) for one in prompts]
            for index, choice in enumerate(choices):
                assert choice["text"] == texts[index // n] + plain[index]["text"]
            ids = [
                served.front.tokenizer.encode_text(one) if isinstance(one, str) else one
                for one in prompts
            ]
            usage = answer["usage"]
            assert usage["prompt_tokens"] == sum(map(len, ids))
            assert usage["completion_tokens"] == len(choices) * 12
            told = await streamed(served, {**body, "echo": True})
            assert told == choices
            if logprobs is None:
                assert choices[0]["logprobs"] is None
                return
            for index, choice in enumerate(choices):
                check_logprobs(choice["logprobs"], ids[index // n], logprobs)

    run(main())


def check_logprobs(told: dict[str, list[Any]], prompt: list[int], top: int) -> None:
    """The first token of a prompt has none; then come the fake engine's, and the output's."""
    num = len(prompt)
    assert {len(values) for values in told.values()} == {num + 12}
    assert told["token_logprobs"] == [None, *(-float(i) for i in range(1, num)), *[-0.5] * 12]
    assert told["top_logprobs"][0] is None
    for best in told["top_logprobs"][1:num]:
        assert top <= len(best) <= top + 1
    offsets = told["text_offset"]
    assert offsets[0] == 0
    lengths = [len(token) for token in told["tokens"]]
    assert offsets == [sum(lengths[:i]) for i in range(len(offsets))]


@pytest.mark.parametrize("top", [0, 2])
def test_prompt_logprobs_are_told_beside_the_answer(run, serve, top):
    async def main():
        async with serve() as served:
            body = {"prompt": [[9, 8, 7], [6]], "prompt_logprobs": top, "max_tokens": 1, "n": 2}
            choices = (await whole(served, COMPLETIONS, body))["choices"]
            assert [choice["prompt_logprobs"] for choice in choices[2:]] == [[None]] * 2
            for choice in choices[:2]:
                first, *others = choice["prompt_logprobs"]
                assert first is None
                for place, told in enumerate(others, start=1):
                    token = [9, 8, 7][place]
                    own = told.pop(str(token))
                    assert (own["logprob"], own["rank"]) == (-float(place), place)
                    assert own["decoded_token"] == served.front.tokenizer.decode([token])
                    assert [told[str(i)]["rank"] for i in range(top)] == list(range(1, top + 1))
                    assert len(told) == top
            chat = {"messages": TURNS, "prompt_logprobs": top, "max_tokens": 1}
            answer = await whole(served, CHAT, chat)
            assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
            assert "prompt_logprobs" not in answer["choices"][0]

    run(main())


def test_prompt_logprobs_and_echo_may_want_different_numbers(run, serve):
    async def main():
        async with serve() as served:
            body = {"prompt": [9, 8, 7], "echo": True, "max_tokens": 1}
            body |= {"logprobs": 1, "prompt_logprobs": 3}
            [choice] = (await whole(served, COMPLETIONS, body))["choices"]
            assert len(choice["logprobs"]["top_logprobs"][1]) == 2
            assert len(choice["prompt_logprobs"][1]) == 4

    run(main())


def test_a_chat_echoes_what_the_assistant_had_said(run, serve):
    async def main():
        async with serve() as served:
            served.front.says("gladly")
            body = {"messages": TURNS, "continue_final_message": True, "echo": True}
            answer = await whole(served, CHAT, body)
            assert answer["choices"][0]["message"]["content"] == "Sure: gladly"
            events = await served.events(CHAT, body)
            deltas = [event["choices"][0]["delta"] for event in events[:-1]]
            assert deltas[0] == {"role": "assistant", "content": ""}
            assert "".join(delta.get("content", "") for delta in deltas) == "Sure: gladly"
            asked = await whole(served, CHAT, {"messages": TURNS[:1], "echo": True})
            assert asked["choices"][0]["message"]["content"] == "gladly"

    run(main())


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ({}, False),
        ({"echo": True}, False),
        ({"logprobs": 1}, False),
        ({"echo": True, "logprobs": 1}, True),
        ({"prompt_logprobs": 0}, True),
    ],
)
def test_a_prompt_that_is_scored_finds_nothing_in_the_cache(run, serve, given, own):
    """Under a salt that nobody else has, and no client could guess or send."""

    async def main():
        async with serve() as served:
            for _ in range(2):
                await whole(served, COMPLETIONS, {"prompt": "x", "cache_salt": "s", **given})
            salts = [submit.cache_salt for submit in served.front.engine.submits()]
            if own:
                assert len({*salts, "s"}) == 3
                assert min(map(len, salts)) > 128
            else:
                assert salts == ["s", "s"]

    run(main())


def test_long_prompts_are_told_in_pieces_as_if_at_once(run, serve):
    async def main():
        async with serve(max_model_len=1000) as served:
            num = 3 * MAX_POSITIONS + 7
            body = {"prompt": [5] * num, "echo": True, "logprobs": 1, "max_tokens": 2}
            [choice] = (await whole(served, COMPLETIONS, body))["choices"]
            assert len(choice["logprobs"]["tokens"]) == num + 2
            assert await streamed(served, body) == [choice]
            events = await served.events(COMPLETIONS, body)
            sizes = [
                len(event["choices"][0]["logprobs"]["tokens"])
                for event in events[:-1]
                if event["choices"][0]["logprobs"]
            ]
            assert max(sizes) <= MAX_POSITIONS
            scored = await whole(served, COMPLETIONS, {"prompt": [5] * num, "prompt_logprobs": 1})
            assert len(scored["choices"][0]["prompt_logprobs"]) == num

    run(main())


def test_what_several_prompts_cost_together_is_bounded(run, serve):
    async def main():
        async with serve(max_model_len=100_000) as served:
            body = {"prompt": [[5] * 4_000] * 2, "echo": True, "logprobs": 9, "n": 16}
            response = await served.http.post(COMPLETIONS, json=body)
            assert response.status_code == 400
            assert "logprobs" in response.json()["error"]["param"]
            assert served.front.engine.submits() == []

    run(main())
