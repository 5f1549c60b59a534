"""An answer is the same over every transport: text, ids, ends, usage, log-probabilities."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from .conftest import Served

HI = [{"role": "user", "content": "hi"}]
PROMPTS: list[dict[str, Any]] = [{"prompt": "x", "max_tokens": 40}, {"messages": HI}]


STOPS: list[tuple[Any, ...]] = [
    ("hello world", "lo w", "hel", "hello w"),  # over the edges of five tokens
    ("hello", "zz", "hello", "hello"),
    ("hello", "lox", "hello", "hello"),  # held back to the end
    ("ab", "b", "a", "ab"),
    ("a\n\n\nb", ["\n\n", "b"], "a", "a\n\n"),
    ("aab", ["ab", "aab"], "", "aab"),  # the one that begins first
    ("x😀y", "😀", "x", "x😀"),  # of one character in four tokens
    ("x👨‍👩‍👧y", "👩", "x👨\u200d", "x👨\u200d👩"),
]


def test_a_stop_string_ends_the_text(run, serve):
    async def main():
        async with serve() as served:
            for prompt, (said, stop, text, with_it) in product(PROMPTS, STOPS):
                served.front.says(said)
                for included, expected in ((None, text), (False, text), (True, with_it)):
                    told = await served.ask(
                        {**prompt, "stop": stop, "include_stop_str_in_output": included}
                    )
                    choice = told.choices[0]
                    assert (choice.text, choice.reason) == (expected, "stop")
                    is_found = text != with_it
                    assert (choice.stop_reason is not None) is is_found
                    assert choice.stop_reason in (None, stop, *stop)
                    assert told.usage["completion_tokens"] == len(choice.token_ids)

    run(main())


ENDS: list[tuple[Any, ...]] = [
    ({}, "abac", "stop", None),
    ({"max_tokens": 1}, "a", "length", None),
    ({"max_tokens": 4}, "abac", "length", None),
    ({"max_tokens": 5}, "abac", "stop", None),  # the fifth ends it
    ({"stop_token_ids": [65]}, "a", "stop", 65),
    ({"stop_token_ids": [65], "include_stop_str_in_output": True}, "ab", "stop", 65),
    ({"stop": "a", "min_tokens": 0}, "", "stop", "a"),
    ({"stop": "a", "min_tokens": 1}, "ab", "stop", "a"),
    ({"stop": "a", "min_tokens": 2}, "ab", "stop", "a"),
    ({"stop": "a", "min_tokens": 3, "max_tokens": 4}, "abac", "length", None),
    ({"stop": "ba", "min_tokens": 2}, "abac", "stop", None),  # it begins too soon
    ({"ignore_eos": True, "max_tokens": 6}, "abac", "length", None),
    (
        {"ignore_eos": True, "max_tokens": 6, "skip_special_tokens": False},
        "abac<|end|><|end|>",
        "length",
        None,
    ),
    ({"skip_special_tokens": False}, "abac", "stop", None),
    (
        {"skip_special_tokens": False, "include_stop_str_in_output": True},
        "abac<|end|>",
        "stop",
        None,
    ),
]


def test_where_a_choice_ends(run, serve):
    async def main():
        async with serve() as served:
            served.front.says("abac")
            for prompt, (given, text, reason, stop_reason) in product(PROMPTS, ENDS):
                told = await served.ask({**prompt, **given})
                choice = told.choices[0]
                assert (choice.text, choice.reason, choice.stop_reason) == (
                    text,
                    reason,
                    stop_reason,
                )
                assert told.usage["completion_tokens"] == len(choice.token_ids)

    run(main())


TEXTS: list[tuple[Any, ...]] = [
    ("a😀", {}, "a😀"),
    ("a😀", {"max_tokens": 2}, "a\ufffd"),  # cut in its first byte
    ("a😀", {"max_tokens": 3}, "a\ufffd"),
    ("a😀", {"max_tokens": 3, "skip_special_tokens": False}, "a\ufffd"),
    ("a😀", {"max_tokens": 4, "stop": "\ufffd"}, "a"),
    ("příliš 漢字 👨‍👩‍👧", {"max_tokens": 60}, "příliš 漢字 👨‍👩‍👧"),
    ("a<|im_start|>b", {}, "ab"),
    ("a<|im_start|>b", {"skip_special_tokens": False}, "a<|im_start|>b"),
    ("a<|im_start|>b", {"skip_special_tokens": False, "stop": "start"}, "a<|im_"),
]


def test_characters_of_several_tokens_and_control_tokens(run, serve):
    async def main():
        async with serve() as served:
            for prompt, (said, given, text) in product(PROMPTS, TEXTS):
                served.front.says(said)
                assert (await served.ask({**prompt, **given})).texts == [text]

    run(main())


def test_bytes_that_are_no_text_are_told_as_replacements(run, serve):
    async def main():
        async with serve() as served:
            ids = served.front.tokenizer.encode_text("😀")
            served.front.says_tokens(*ids[:2], *ids[:2], *ids)
            for prompt in PROMPTS:
                [text] = (await served.ask({**prompt, "max_tokens": 40})).texts
                assert text.endswith("😀")
                assert "\ufffd" in text

    run(main())


@pytest.mark.parametrize("logprobs", [None, 0, 2])
def test_log_probabilities_and_echoes(run, serve, logprobs):
    async def check(served: Served, n: int, echo: bool | None) -> None:
        served.front.says("wörld 😀")
        given = {"logprobs": logprobs, "n": n, "echo": echo, "max_tokens": 40}
        told = await served.ask({"prompt": "he said ", **given})
        assert told.texts == n * [("he said " if echo else "") + "wörld 😀"]
        num_prompt = len(served.front.tokenizer.encode_text("he said "))
        assert told.usage == {
            "prompt_tokens": num_prompt,
            "completion_tokens": n * 12,
            "cached_tokens": 3,
        }
        for choice in told.choices.values():
            assert len(choice.token_ids) == 12
            num = 0 if logprobs is None else 12 + (num_prompt if echo else 0)
            assert len(choice.logprobs) == num
            if logprobs == 2:
                assert all(len(each.best) >= 2 for each in choice.logprobs[-12:])

        said = [*HI, {"role": "assistant", "content": "Sure, "}]
        chat = {"messages": said, "continue_final_message": True, **given}
        told = await served.ask(chat)
        assert told.texts == n * [("Sure, " if echo else "") + "wörld 😀"]

    async def main():
        async with serve() as served:
            for n, echo in product((1, 3), (None, True)):
                await check(served, n, echo)

    run(main())


@pytest.mark.parametrize("top", [0, 2])
@pytest.mark.parametrize("max_tokens", [0, 1, 3])
def test_a_prompts_own_log_probabilities(run, serve, top, max_tokens):
    """Where the answer is not streamed over HTTP, which refuses to tell them there."""

    async def main():
        async with serve() as served:
            refused = served.transports.pop(1)
            for prompt in ({"prompt": [9, 8, 7]}, {"messages": HI}):
                fields = {**prompt, "prompt_logprobs": top, "max_tokens": max_tokens, "n": 2}
                told = await served.ask(fields)
                assert len(told.prompt_logprobs) == told.usage["prompt_tokens"]
                assert told.prompt_logprobs[0] is None
                assert {len(each) for each in told.prompt_logprobs[1:]} == {top + 1}
                assert told.usage["completion_tokens"] == 2 * max_tokens
                failure = (await refused.ask(fields)).failure
                assert (failure.code, failure.field) == ("INVALID_ARGUMENT", "prompt_logprobs")

    run(main())


@pytest.mark.parametrize("given", [{"logprobs": 1}, {}])
def test_a_prompt_can_be_echoed_and_nothing_said(run, serve, given):
    async def main():
        async with serve() as served:
            told = await served.ask({"prompt": [9, 8, 7], "echo": True, "max_tokens": 0, **given})
            text = served.front.tokenizer.decode([9, 8, 7])
            assert (told.texts, told.choices[0].reason) == ([text], "length")
            assert told.usage["completion_tokens"] == 0
            logprobs = [each.logprob for each in told.choices[0].logprobs]
            assert logprobs == ([None, -1.0, -2.0] if given else [])

    run(main())


def test_long_prompts_are_told_in_pieces_as_if_at_once(run, serve):
    async def main():
        async with serve(max_model_len=1000) as served:
            ids = [5] * 600
            told = await served.ask({"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 2})
            assert [each.logprob for each in told.choices[0].logprobs][:600] == [
                None,
                *(-float(place) for place in range(1, 600)),
            ]

    run(main())


def test_what_is_left_of_the_context_is_the_default_but_for_completions(run, serve):
    """OpenAI's 16 are theirs."""

    async def main():
        async with serve(max_model_len=64) as served:
            told = await served.ask({"messages": HI, "ignore_eos": True})
            assert told.usage["completion_tokens"] == 64 - told.usage["prompt_tokens"]
            whole, events, *rpc = [
                (await each.ask({"prompt": "x", "ignore_eos": True})).usage["completion_tokens"]
                for each in served.transports
            ]
            assert (whole, events, rpc) == (16, 16, [63, 63])

    run(main())


def test_choices_end_each_in_its_own_time(run, serve):
    async def main():
        async with serve() as served:
            engine = served.front.engine
            engine.reply = lambda submit: [64 + submit.choice] * (submit.choice * 3 + 1)
            told = await served.ask({"messages": HI, "n": 4, "max_tokens": 7})
            assert [len(told.choices[index].token_ids) for index in range(4)] == [2, 5, 7, 7]
            assert [told.choices[index].reason for index in range(4)] == [
                *("stop", "stop", "length", "length")
            ]

    run(main())
