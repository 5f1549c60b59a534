"""What a prompt becomes before the model reads it: truncation, and how a chat is rendered."""

from __future__ import annotations

from typing import Any

import pytest

from cadenza.service.chat_template import ChatTemplate
from cadenza.wire.arrays import view_ids

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
BOS = 5
TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Sure: "}]


async def prompt_ids(served: Any, path: str, **body: Any) -> list[int]:
    response = await served.http.post(path, json={"max_tokens": 1, **body})
    assert response.status_code == 200, response.text
    return view_ids(served.front.engine.submits()[-1].prompt).tolist()


async def prompt_text(served: Any, **body: Any) -> str:
    ids = await prompt_ids(served, CHAT, **body)
    return str(served.front.tokenizer.decode(ids))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"truncate_prompt_tokens": None}, list(range(10, 20))),
        ({"truncate_prompt_tokens": 3}, [17, 18, 19]),
        ({"truncate_prompt_tokens": 1}, [19]),
        ({"truncate_prompt_tokens": 10}, list(range(10, 20))),
        ({"truncate_prompt_tokens": 15}, list(range(10, 20))),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, [17, 18, 19]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, [10, 11, 12]),
        ({"truncate_prompt_tokens": -1, "max_tokens": 9}, [*range(13, 20)]),
        ({"truncate_prompt_tokens": -1, "max_tokens": 15}, [19]),
        ({"truncate_prompt_tokens": -1, "max_tokens": 2}, list(range(10, 20))),
    ],
)
def test_ids_are_truncated_where_that_is_asked_for(run, serve, given, kept):
    async def main():
        async with serve(max_model_len=16) as served:
            ids = await prompt_ids(served, COMPLETIONS, prompt=list(range(10, 20)), **given)
            assert ids == kept

    run(main())


def test_a_prompt_beyond_the_context_is_served_truncated_and_refused_otherwise(run, serve):
    async def main():
        async with serve(max_model_len=64) as served:
            for prompt in (list(range(100)), "a " * 100):
                refused = await served.http.post(COMPLETIONS, json={"prompt": prompt})
                assert refused.status_code == 400
                assert refused.json()["error"]["param"] == "prompt"
                ids = await prompt_ids(
                    served, COMPLETIONS, prompt=prompt, truncate_prompt_tokens=-1, max_tokens=4
                )
                assert len(ids) == 60
            kept = await prompt_ids(
                served, COMPLETIONS, prompt=list(range(100)), truncate_prompt_tokens=60
            )
            assert kept == list(range(40, 100))

    run(main())


@pytest.mark.parametrize("prompt", [[5] * 300, "x" * 300])
def test_a_truncated_prompt_leaves_room_for_the_token_that_nobody_is_told(run, serve, prompt):
    async def main():
        async with serve() as served:
            fields = {"truncate_prompt_tokens": -1, "max_tokens": 0, "prompt_logprobs": 0}
            ids = await prompt_ids(served, COMPLETIONS, prompt=prompt, **fields)
            assert len(ids) == 255

    run(main())


def test_only_ids_that_are_kept_must_be_of_the_vocabulary(run, serve):
    async def main():
        async with serve() as served:
            body = {"prompt": [10**9, 5, 6], "truncate_prompt_tokens": 2}
            assert await prompt_ids(served, COMPLETIONS, **body) == [5, 6]
            body = {"prompt": [5, 6, 10**9], "truncate_prompt_tokens": 2}
            assert (await served.http.post(COMPLETIONS, json=body)).status_code == 400

    run(main())


def test_what_opens_a_text_survives_truncation(run, serve):
    async def main():
        async with serve() as served:
            served.front.tokenizer.prefix = [BOS]
            text = served.front.tokenizer.encode_text("abcd", opened=False)
            for given, kept in (
                ({"truncate_prompt_tokens": 3}, [BOS, *text[2:]]),
                ({"truncate_prompt_tokens": 1}, text[3:]),
                ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, [BOS, *text[:2]]),
                ({"truncate_prompt_tokens": 3, "add_special_tokens": False}, text[1:]),
            ):
                assert await prompt_ids(served, COMPLETIONS, prompt="abcd", **given) == kept

    run(main())


def test_a_chat_is_opened_only_where_its_template_has_not_done_it(run, serve):
    async def main():
        async with serve() as served:
            tokenizer = served.front.tokenizer
            plain = await prompt_ids(served, CHAT, messages=TURNS)
            tokenizer.prefix = [BOS]
            for wanted, opening in ((None, []), (False, []), (True, [BOS])):
                ids = await prompt_ids(served, CHAT, messages=TURNS, add_special_tokens=wanted)
                assert ids == opening + plain
            tokenizer.prefix = plain[:1]
            assert await prompt_ids(served, CHAT, messages=TURNS, add_special_tokens=True) == plain

    run(main())


HI = "<|im_start|>user\nhi<|im_end|>\n"


@pytest.mark.parametrize(
    ("given", "end"),
    [
        ({}, "Sure: <|im_end|>\n<|im_start|>assistant\n"),
        ({"add_generation_prompt": True}, "Sure: <|im_end|>\n<|im_start|>assistant\n"),
        ({"add_generation_prompt": False}, "Sure: <|im_end|>\n"),
        ({"continue_final_message": True}, "Sure: "),
        ({"continue_final_message": True, "add_generation_prompt": False}, "Sure: "),
        (
            {"continue_final_message": None, "add_generation_prompt": None},
            "Sure: <|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
)
def test_the_assistant_begins_or_goes_on_or_neither(run, serve, given, end):
    async def main():
        async with serve() as served:
            text = await prompt_text(served, messages=TURNS, **given)
            assert text == f"{HI}<|im_start|>assistant\n{end}"

    run(main())


def test_the_assistant_cannot_both_begin_and_go_on(run, serve):
    async def main():
        async with serve() as served:
            body = {"continue_final_message": True, "add_generation_prompt": True}
            response = await served.http.post(CHAT, json={"messages": TURNS, **body})
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "continue_final_message"

    run(main())


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}[{{ m['content'] | trim }}]{% endfor %}", "[hi][Sure: "),
        (
            "{% for m in messages %}{{ m['content'] }}{{ m['content'] }};{% endfor %}",
            "hihi;Sure: Sure: ",
        ),
        ("{{ messages[0]['content'] }}", None),
        ("{{ messages | length }}", None),
    ],
)
def test_a_template_that_rewrites_the_last_message(run, serve, template, text):
    """What was said is continued as it was said; where it does not stand, nothing can be."""

    async def main():
        async with serve() as served:
            served.front.tokenizer.template = ChatTemplate(template)
            body = {"messages": TURNS, "continue_final_message": True, "max_tokens": 1}
            if text is not None:
                assert await prompt_text(served, **body) == text
                return
            response = await served.http.post(CHAT, json=body)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "continue_final_message"

    run(main())


def test_variables_reach_the_template_and_cannot_forge_control_tokens(run, serve):
    async def main():
        async with serve() as served:
            served.front.tokenizer.template = ChatTemplate(
                "{% if thinking is defined and not thinking %}[no]{% endif %}"
                "{{ note }}{{ more | tojson if more else '' }}<|im_end|>"
            )
            backend = served.front.tokenizer.backend
            end = backend.token_to_id("<|im_end|>")
            for given, text in (
                (None, "<|im_end|>"),
                ({}, "<|im_end|>"),
                ({"thinking": False}, "[no]<|im_end|>"),
                ({"thinking": True, "unknown": [1, None]}, "<|im_end|>"),
                ({"note": "<|im_end|>"}, "<|im_end|><|im_end|>"),
                (
                    {"more": {"<|im_end|>": ["<|im_end|>"]}},
                    '{"<|im_end|>": ["<|im_end|>"]}<|im_end|>',
                ),
            ):
                body = {"messages": TURNS, "chat_template_kwargs": given}
                ids = await prompt_ids(served, CHAT, **body)
                assert served.front.tokenizer.decode(ids) == text
                assert ids.count(end) == 1

    run(main())
