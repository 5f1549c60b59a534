"""Requests that go on from others, with the real generator between gRPC and a fake engine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cadenza.service.request import GenerationRequest
from cadenza.v1 import generation_pb2 as pb
from cadenza.wire.arrays import view_ids
from tests.service.rpc.talking import Talk, turns

INVALID_ARGUMENT, NOT_FOUND, CANCELLED = 3, 5, 1


def prompts(front) -> list[list[int]]:
    """Of all requests that the engine got."""
    return [view_ids(submit.prompt).tolist() for submit in front.engine.submits()]


def ids(*tokens: int) -> pb.TokenIds:
    return pb.TokenIds(ids=tokens)


async def test_text_comes_after_the_prompt_and_the_output(serve_front):
    async with serve_front() as (front, stub):
        talk = Talk(stub)
        front.says("hello")
        await talk.submit("a", text="he said: ", max_tokens=3)
        await talk.end_of("a")
        await talk.append("b", "a", text=" wall", max_tokens=1)
        await talk.end_of("b")

        first, second = prompts(front)
        # As one text they would be other tokens: "ll" joins where "l" and "l" do not
        appended = front.tokenizer.encode_text(" wall", opened=False)
        assert second == first + talk.ids_of("a") + appended
        [accepted] = [event.accepted for event in talk.of("b") if event.HasField("accepted")]
        assert accepted.prompt_tokens == len(second)


async def test_ids_come_after_all_tokens_that_were_told(serve_front):
    """The token that ended the other one is among them."""
    async with serve_front() as (front, stub):
        talk = Talk(stub)
        front.says_tokens(8, 9)
        await talk.submit("a", token_ids=ids(5, 6))
        await talk.end_of("a")
        await talk.append("b", "a", token_ids=ids(30, 31))
        await talk.end_of("b")

        assert prompts(front)[1] == [5, 6, 8, 9, front.engine.eos, 30, 31]


async def test_an_output_goes_on_where_nothing_is_appended(serve_front):
    async with serve_front() as (front, stub):
        talk = Talk(stub)
        front.says_tokens(8, 9, 10)
        await talk.submit("a", token_ids=ids(5, 6), max_tokens=2)
        await talk.end_of("a")
        await talk.append("a", "a", max_tokens=1)
        await talk.end_of("a")
        await talk.append("a", "a", max_tokens=1)
        await talk.end_of("a")

        assert prompts(front)[1:] == [[5, 6, 8, 9], [5, 6, 8, 9, 8]]


@pytest.mark.parametrize("max_tokens", [2, None], ids=["length", "end of turn"])
async def test_a_chat_goes_on_with_the_tokens_of_the_whole_chat(serve_front, max_tokens):
    async with serve_front() as (front, stub):
        talk = Talk(stub)
        front.says("abcd")
        given = {} if max_tokens is None else {"max_tokens": max_tokens}
        await talk.submit("a", chat=turns("hi"), **given)
        await talk.end_of("a")
        await talk.append("b", "a", chat=turns("and <|im_end|>?"), **given)
        await talk.end_of("b")
        await talk.append("c", "b", chat=turns("more"), **given)
        await talk.end_of("c")

        said = talk.text_of("a")
        assert said == "abcd"[:max_tokens]
        whole = turns("hi", said, "and <|im_end|>?", said, "more")
        assert prompts(front)[2] == await encoded(front, whole)


async def test_a_stop_token_is_left_to_the_template_unless_it_is_text(serve_front):
    async with serve_front() as (front, stub):
        talk = Talk(stub)
        stop = front.tokenizer.encode_text("x")
        front.says("abx")
        for name, included in (("a", False), ("b", True)):
            await talk.submit(
                name,
                chat=turns("hi"),
                stop_token_ids=stop,
                include_stop_str_in_output=included,
            )
            await talk.end_of(name)
            await talk.append(name, name, chat=turns("more"), max_tokens=1)
            await talk.end_of(name)

        assert prompts(front)[1] == await encoded(front, turns("hi", "ab", "more"))
        assert prompts(front)[3] == await encoded(front, turns("hi", "abx", "more"))


async def encoded(front, chat: pb.Chat) -> Sequence[int]:
    messages = [{"role": turn.role, "content": turn.content} for turn in chat.messages]
    return await front.generator.encode(GenerationRequest(messages=messages))


async def test_several_go_on_from_one_and_from_any_of_its_choices(serve_front):
    async with serve_front() as (front, stub):
        talk = Talk(stub)
        front.engine.reply = lambda submit: [50 + submit.choice]
        await talk.submit("a", token_ids=ids(5), n=2, max_tokens=1)
        await talk.end_of("a")
        for name, choice in (("b", 0), ("c", 1), ("d", 1)):
            await talk.append(name, "a", choice, token_ids=ids(9), max_tokens=1)
            await talk.end_of(name)

        assert prompts(front)[1:] == [[5, 50, 9], [5, 51, 9], [5, 51, 9]]


async def test_the_salt_is_taken_over_and_nothing_else(serve_front):
    async with serve_front() as (front, stub):
        talk = Talk(stub)
        await talk.submit("a", text="x", cache_salt="s", tenant="t", priority=3, max_tokens=1)
        await talk.end_of("a")
        await talk.append("b", "a", text="y", max_tokens=1)
        await talk.end_of("b")
        await talk.append("c", "b", text="y", max_tokens=1)
        await talk.end_of("c")
        await talk.append("d", "a", text="y", max_tokens=1, cache_salt="other")
        await talk.end_of("d")

        submits = front.engine.submits()
        assert [submit.cache_salt for submit in submits] == ["s", "s", "s", "other"]
        assert [(submit.tenant, submit.priority) for submit in submits] == [
            ("t", 3),
            *[("", 0)] * 3,
        ]


async def test_a_prompt_is_truncated_with_what_it_goes_on_from(serve_front):
    async with serve_front() as (front, stub):
        talk = Talk(stub)
        front.says_tokens(8, 9)
        await talk.submit("a", token_ids=ids(5, 6), max_tokens=2)
        await talk.end_of("a")
        await talk.append("b", "a", token_ids=ids(30), truncate_prompt_tokens=3, max_tokens=1)
        await talk.end_of("b")

        assert prompts(front)[1] == [8, 9, 30]


async def test_an_echo_has_all_of_the_prompt(serve_front):
    async with serve_front() as (front, stub):
        talk = Talk(stub)
        front.says("abc")
        await talk.submit("a", text="hello ", max_tokens=3)
        await talk.end_of("a")
        await talk.append("b", "a", text=" def", echo=True, max_tokens=2)
        await talk.end_of("b")

        assert talk.text_of("b") == "hello abc defab"


def refusal(event: pb.Event) -> tuple[int, str]:
    return event.failed.code, event.failed.field


async def test_what_is_not_kept_is_refused_in_band(serve_front):
    async with serve_front() as (front, stub):
        talk = Talk(stub)
        await talk.append("b", "nobody", text="x")
        end = await talk.end_of("b")
        assert refusal(end) == (NOT_FOUND, "")
        assert "'nobody'" in end.failed.message

        await talk.submit("wrong", text="x", n=-1)
        await talk.end_of("wrong")
        await talk.append("c", "wrong", text="x")
        end = await talk.end_of("c")
        assert refusal(end) == (NOT_FOUND, "")
        assert "'wrong' failed" in end.failed.message
        assert prompts(front) == []


async def test_what_still_runs_or_was_cancelled_is_refused(serve_front):
    async with serve_front() as (front, stub):
        talk = Talk(stub)
        front.engine.auto = False
        await talk.submit("a", text="x")
        await talk.append("b", "a", text="y")
        end = await talk.end_of("b")
        assert refusal(end) == (INVALID_ARGUMENT, "after")
        assert "still runs" in end.failed.message

        await talk.send(pb.Cancel(request_id="a"))
        await talk.append("b", "a", text="y")
        assert (await talk.end_of("a")).failed.code == CANCELLED
        end = await talk.end_of("b")
        assert refusal(end) == (NOT_FOUND, "")
        assert "cancelled" in end.failed.message


async def test_a_failure_under_its_own_name_leaves_what_is_kept(serve_front):
    async with serve_front() as (front, stub):
        talk = Talk(stub)
        front.says_tokens(8)
        await talk.submit("a", token_ids=ids(5), max_tokens=1)
        await talk.end_of("a")
        await talk.append("a", "a", text="y", max_tokens=100_000)
        assert refusal(await talk.end_of("a")) == (INVALID_ARGUMENT, "input.max_tokens")
        await talk.append("b", "a", token_ids=ids(9), max_tokens=1)
        await talk.end_of("b")

        assert prompts(front)[1] == [5, 8, 9]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"text": ""}, "input.prompt"),
        ({"text": "x", "add_special_tokens": True}, "input.add_special_tokens"),
        ({"token_ids": ids()}, "input.prompt"),
        ({"token_ids": ids(2**32 - 1)}, "input.prompt"),
        ({"token_ids": ids(*[5] * 300)}, "input.prompt"),
        ({"token_ids": ids(*[5] * 255)}, "input.prompt"),
        ({"chat": pb.Chat()}, "input.chat.messages"),
        ({"chat": pb.Chat(messages=[pb.ChatMessage(role="tool")])}, "input.chat.messages"),
        ({"chat": pb.Chat(messages=[pb.ChatMessage(role="x")])}, "input.chat.messages[0].role"),
        ({"text": "x", "model": "other"}, "input.model"),
    ],
)
async def test_what_is_appended_is_checked(serve_front, fields, field):
    async with serve_front() as (front, stub):
        talk = Talk(stub)
        await talk.submit("a", text="x", max_tokens=1)
        await talk.end_of("a")
        await talk.append("b", "a", **fields)
        end = await talk.end_of("b")

        assert end.failed.field == field
        assert len(prompts(front)) == 1


async def test_an_unusable_name_is_refused_as_at_submit(serve_front):
    async with serve_front() as (_, stub):
        talk = Talk(stub)
        await talk.submit("a", text="x", max_tokens=1)
        await talk.end_of("a")
        await talk.append("", "a", text="x")
        assert refusal(await talk.end_of("")) == (INVALID_ARGUMENT, "request_id")


async def test_a_choice_that_was_not_is_refused(serve_front):
    async with serve_front() as (_, stub):
        talk = Talk(stub)
        await talk.submit("a", text="x", max_tokens=1)
        await talk.end_of("a")
        await talk.append("b", "a", 2**32 - 1, text="x")
        assert refusal(await talk.end_of("b")) == (INVALID_ARGUMENT, "choice")


async def test_an_appended_request_has_a_deadline_and_credit(serve_front):
    async with serve_front() as (front, stub):
        talk = Talk(stub)
        await talk.submit("a", text="x", max_tokens=1)
        await talk.end_of("a")
        append = pb.Append(
            request_id="b", after="a", input=pb.GenerationInput(text="y", max_tokens=1), credit=7
        )
        append.timeout.FromSeconds(60)
        await talk.send(append)
        await talk.end_of("b")

        first, second = front.engine.submits()
        assert (first.credit, first.deadline_s) == (None, None)
        assert second.credit == 7
        assert second.deadline_s is not None
