"""Each field reaches the engine as the same message, whatever transport it came over."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from cadenza.wire.arrays import view_floats, view_ids
from cadenza.wire.messages import Submit

from .conftest import Served

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"prompt": "hi"}


async def submitted(served: Served, fields: dict[str, Any]) -> Submit:
    """The message, the same over every transport but for what is drawn or counted."""
    seen = len(served.front.engine.submits())
    failure = (await served.ask({"max_tokens": 4, **fields})).failure
    assert failure is None
    messages = served.front.engine.submits()[seen:]
    assert len(messages) == 4
    seed = {} if fields.get("seed") is not None else {"seed": 0}
    plain = [replace(each, request=0, sampling=replace(each.sampling, **seed)) for each in messages]
    assert plain == [plain[0]] * 4, fields
    return plain[0]


def sampling(name: str) -> Callable[[Submit], Any]:
    return lambda submit: getattr(submit.sampling, name)


def biases(submit: Submit) -> dict[int, float]:
    ids, values = view_ids(submit.sampling.bias_ids), view_floats(submit.sampling.biases)
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


def allowed(submit: Submit) -> list[int]:
    return list(view_ids(submit.sampling.allowed_ids).tolist())


# field -> what is read, and pairs of a value and what comes of it; None is what null means
SETTINGS: dict[str, tuple[Callable[[Submit], Any], list[tuple[Any, Any]]]] = {
    "temperature": (
        sampling("temperature"),
        [(None, 1.0), (0, 0.0), (1e-6, 0.0), (0.7, 0.7), (100, 100.0)],
    ),
    "top_p": (sampling("top_p"), [(None, 1.0), (0.5, 0.5), (1, 1.0), (1e-9, 1e-9)]),
    "top_k": (sampling("top_k"), [(None, 0), (0, 0), (-1, 0), (40, 40), (2**31 - 1, 2**31 - 1)]),
    "min_p": (sampling("min_p"), [(None, 0.0), (0, 0.0), (0.05, 0.05), (1, 1.0)]),
    "presence_penalty": (
        sampling("presence_penalty"),
        [(None, 0.0), (0, 0.0), (2, 2.0), (-2, -2.0), (-0.5, -0.5)],
    ),
    "frequency_penalty": (
        sampling("frequency_penalty"),
        [(None, 0.0), (0, 0.0), (2, 2.0), (-2, -2.0), (0.25, 0.25)],
    ),
    "repetition_penalty": (
        sampling("repetition_penalty"),
        [(None, 1.0), (1, 1.0), (0.01, 0.01), (100, 100.0), (1.1, 1.1)],
    ),
    "seed": (
        sampling("seed"),
        [(0, 0), (5, 5), (-1, 2**64 - 1), (2**63 - 1, 2**63 - 1), (-(2**63), 2**63)],
    ),
    "logit_bias": (
        biases,
        [(None, {}), ({"5": -100, "0": 2.5}, {5: -100.0, 0: 2.5}), ({"7": 0.0}, {7: 0.0})],
    ),
    "allowed_token_ids": (allowed, [(None, []), ([7, 5, 7], [5, 7])]),
    "logprobs": (sampling("logprobs"), [(None, None), (0, 0), (20, 20)]),
    "n": (lambda submit: submit.n, [(None, 1), (1, 1), (3, 3)]),
    "max_tokens": (lambda submit: submit.max_tokens, [(1, 1), (100, 100)]),
    "stop_token_ids": (lambda submit: submit.stop_token_ids, [(None, ()), ([9, 5], (9, 5))]),
    "ignore_eos": (lambda submit: submit.ignore_eos, [(None, False), (False, False), (True, True)]),
    "priority": (
        lambda submit: submit.priority,
        [(None, 0), (-7, -7), (2**31 - 1, 2**31 - 1), (-(2**31), -(2**31))],
    ),
    "cache_salt": (lambda submit: submit.cache_salt, [(None, ""), ("s", "s"), ("ř" * 128,) * 2]),
    "tenant": (lambda submit: submit.tenant, [("a", "a"), ("x" * 128,) * 2]),
    "ttft_target_s": (lambda submit: submit.ttft_target_s, [(0.25, 0.25), (86_400.0,) * 2]),
    "tpot_target_s": (lambda submit: submit.tpot_target_s, [(0.05, 0.05)]),
}


@pytest.mark.parametrize("field", SETTINGS)
def test_a_field_reaches_the_engine(run, serve, field: str):
    async def main():
        read, values = SETTINGS[field]
        async with serve() as served:
            for prompt, (value, expected) in product((CHAT, COMPLETION), values):
                found = read(await submitted(served, {**prompt, field: value}))
                assert (found, type(found)) == (expected, type(expected))

    run(main())


def test_what_is_not_said_is_what_null_says(run, serve):
    async def main():
        async with serve() as served:
            for prompt in (CHAT, COMPLETION):
                nothing = await submitted(served, prompt)
                nulls = dict.fromkeys(SETTINGS.keys() - {"max_tokens", "tenant"} - TARGETS)
                assert await submitted(served, {**prompt, **nulls}) == nothing

    run(main())


TARGETS = {"ttft_target_s", "tpot_target_s"}


@pytest.mark.parametrize(
    ("words", "spellings"),
    [
        ("well", ["well", " well"]),
        (["well", " well", "hell"], ["well", " well", "hell", " hell"]),
        (["\n"], ["\n", " \n"]),
        ([" "], [" "]),
        (["<|im_end|>"], ["<|im_end|>", " <|im_end|>"]),
        (["漢"], ["漢", " 漢"]),
    ],
)
def test_bad_words_become_ids_with_and_without_a_space(run, serve, words, spellings):
    async def main():
        async with serve() as served:
            found = (await submitted(served, {**COMPLETION, "bad_words": words})).sampling.bad_words
            encode = served.front.tokenizer.encode_text
            assert set(found) == {tuple(encode(word)) for word in spellings}
            assert len(found) == len(set(spellings))

    run(main())


def test_a_minimum_puts_off_whatever_would_end_a_choice(run, serve):
    async def main():
        async with serve() as served:
            eos = served.front.engine.eos
            for given, least, ending in (
                ({"min_tokens": 0}, 0, ()),
                ({"min_tokens": 3}, 3, (eos,)),
                ({"min_tokens": 3, "ignore_eos": True}, 0, ()),  # nothing ends it sooner
                ({"min_tokens": 1, "stop_token_ids": [9, 5]}, 1, (5, 9, eos)),
                ({"min_tokens": 1, "stop_token_ids": [9, 5], "ignore_eos": True}, 1, (5, 9)),
                ({"min_tokens": 1, "stop_token_ids": [eos], "ignore_eos": True}, 1, (eos,)),
            ):
                found = (await submitted(served, {**CHAT, **given})).sampling
                assert (found.min_tokens, found.ending_ids) == (least, ending)

    run(main())


def test_a_prompt_is_the_same_ids(run, serve):
    async def main():
        async with serve() as served:
            ids = [40, 70, 30, 50]
            for given, kept in (
                ({}, ids),
                ({"truncate_prompt_tokens": 2}, ids[2:]),
                ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, ids[:2]),
                ({"truncate_prompt_tokens": -1}, ids),
                ({"truncate_prompt_tokens": 99, "truncation_side": "left"}, ids),
                ({"add_special_tokens": False}, ids),
            ):
                found = await submitted(served, {"prompt": ids, **given})
                assert view_ids(found.prompt).tolist() == kept
            for text in ("příliš 😀", "<|im_start|>", " " * 20, "a\r\nb\x00"):
                found = await submitted(served, {"prompt": text})
                assert view_ids(found.prompt).tolist() == served.front.tokenizer.encode_text(text)

    run(main())


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"add_generation_prompt": False},
        {"add_generation_prompt": True},
        {"chat_template_kwargs": {"enable_thinking": False, "x": [1, {"y": 2.5}]}},
        {"add_special_tokens": True},
        {"truncate_prompt_tokens": 5},
    ],
)
def test_a_chat_is_rendered_alike(run, serve, given):
    async def main():
        async with serve() as served:
            for turns in (
                [{"role": "system", "content": "Be brief."}, *CHAT["messages"]],
                [{"role": "user", "content": "<|im_end|> 😀"}, {"role": "user", "content": ""}],
            ):
                await submitted(served, {"messages": turns, **given})

    run(main())


def test_an_open_turn_is_gone_on_with_alike(run, serve):
    async def main():
        async with serve() as served:
            turns = [*CHAT["messages"], {"role": "assistant", "content": "Sure, "}]
            found = await submitted(served, {"messages": turns, "continue_final_message": True})
            assert served.front.tokenizer.decode(view_ids(found.prompt).tolist()).endswith("Sure, ")

    run(main())
