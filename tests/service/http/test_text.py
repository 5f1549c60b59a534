"""What of a choice's tokens is text: stop strings, control tokens."""

from __future__ import annotations

from typing import Any

import pytest

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


async def both(served: Any, body: dict[str, Any], path: str = COMPLETIONS) -> tuple[str, Any]:
    """The text, which must be the same streamed and whole, and the whole choice."""
    whole = (await served.http.post(path, json=body)).json()["choices"][0]
    events = await served.events(path, body)
    text = whole["text"] if path == COMPLETIONS else whole["message"]["content"]
    pieces = [event["choices"][0] for event in events[:-1]]
    if path == CHAT:
        pieces = [piece["delta"].get("content", "") for piece in pieces]
    else:
        pieces = [piece["text"] for piece in pieces]
    assert "".join(pieces) == text
    return text, whole


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    ("text", "stop", "told", "told_with_it"),
    [
        ("hello world", "lo w", "hel", "hello w"),
        ("hello", "zz", "hello", "hello"),
        ("ab", "b", "a", "ab"),
        ("a\n\n\nb", ["\n\n", "b"], "a", "a\n\n"),
        ("x😀y", "😀", "x", "x😀"),
    ],
)
def test_a_stop_string_is_told_where_it_is_wanted(run, serve, path, text, stop, told, told_with_it):
    async def main():
        async with serve() as served:
            served.front.says(text)
            prompt = {"messages": [{"role": "user", "content": "x"}]}
            body = {**(prompt if path == CHAT else {"prompt": "x"}), "stop": stop}
            found = (await both(served, body, path))[0]
            included, _ = await both(served, {**body, "include_stop_str_in_output": True}, path)
            assert (found, included) == (told, told_with_it)

    run(main())


def test_a_stop_token_is_told_with_the_stop_strings(run, serve):
    async def main():
        async with serve() as served:
            served.front.says("abc")
            [stop] = served.front.tokenizer.encode_text("b")
            body = {"prompt": "x", "stop_token_ids": [stop]}
            assert (await both(served, body))[0] == "a"
            told, whole = await both(served, {**body, "include_stop_str_in_output": True})
            assert told == "ab"
            assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", stop)

    run(main())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "ab"),
        ({"skip_special_tokens": True}, "ab"),
        ({"skip_special_tokens": False}, "a<|im_start|>b"),
        ({"include_stop_str_in_output": True}, "ab"),
        (
            {"skip_special_tokens": False, "include_stop_str_in_output": True},
            "a<|im_start|>b<|end|>",
        ),
        ({"skip_special_tokens": False, "stop": "start"}, "a<|im_"),
    ],
)
def test_control_tokens_have_text_where_it_is_wanted(run, serve, given, told):
    async def main():
        async with serve() as served:
            served.front.says("a<|im_start|>b")
            assert (await both(served, {"prompt": "x", **given}))[0] == told

    run(main())


def test_bytes_at_the_end_are_told_alike_with_control_tokens(run, serve):
    async def main():
        async with serve() as served:
            served.front.says("a😀")
            for skips in (True, False):
                body = {"prompt": "x", "max_tokens": 3, "skip_special_tokens": skips}
                assert (await both(served, body))[0] == "a\ufffd"

    run(main())
