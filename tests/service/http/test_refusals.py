"""What cannot be served is refused with a 4xx in OpenAI's shape, alike in both modes."""

from __future__ import annotations

import json

import pytest

from cadenza.service.limits import Limits

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]

# field of the body -> values that are wrong there
BAD_SAMPLING = {
    "temperature": [-0.1, 1e9, "1", True, [], {}],
    "top_p": [0, -1, 1.1, "x", False],
    "top_k": [0.01, -2, 1e12, 2**31, "5", True],
    "min_p": [-0.1, 1.5, "0"],
    "seed": [1.5, "1", 2**63, -(2**63) - 1, True],
    "n": [0, -1, 17, 1000000, 1.0, "2", True],
    "stop": ["", [""], ["a", "", "b"], ["a"] * 5, "x" * 257, [1], 5, {}],
    "stop_token_ids": [[-1], [10**9], [1.5], [True], "1", [1] * 17],
    "ignore_eos": [1, "true"],
    "max_tokens": [0, -1, 1.5, "10", True, 257, 10**12],
    "min_tokens": [-1, "x", 1.0, True, 2**31, 256],
    "add_special_tokens": [1, "no"],
    "priority": [2**31, 1.0, "0"],
    "cache_salt": ["", "x" * 129, 5],
    "frequency_penalty": [2.1, -2.001, 10**30, True, "0", [], {}],
    "presence_penalty": [2.5, -3, 10**30, False, "0.5", [0]],
    "repetition_penalty": [0, -0.0, -1, 0.001, 1e-320, 101, 1e308, True, "1", [1.1]],
    "logit_bias": [
        5,
        [],
        "x",
        {"AI": 1},
        {"5": "x"},
        {"5": None},
        {"5": True},
        {"5": 1e9},
        {"5": -100.5},
        {"-1": 1},
        {"1000000": 1},
        {"9" * 5000: 1},
        {"05": 1},
        {"5.0": 1},
        {"": 1},
        {"\u0665": 1},
        {" 5": 1},
        {str(token): 0 for token in range(1025)},
    ],
    "allowed_token_ids": [[], 5, "1", [-1], [10**9], [1.5], [True], ["1"], [1] * 1000],
    "bad_words": [5, [""], "", ["a", ""], [5], {"a": 1}, ["x"] * 129, "x" * 257],
    "response_format": [{"type": "json_object"}, {"type": "foo"}, "text"],
    "structured_outputs": [{"regex": "a"}],
    "guided_json": [{}],
    "regex": ["a", ""],
    "ebnf": ["root ::= a"],
    "json_schema": ["{}"],
    "stop_regex": ["a", ["a"]],
    "thinking_token_budget": [0, 5],
    "vllm_xargs": [{"a": 1}],
    "kv_transfer_params": [{"do_remote_decode": True}],
    "best_of": [2],
    "include_stop_str_in_output": [1, "true"],
    "skip_special_tokens": [0, "no"],
    "truncate_prompt_tokens": [0, -2, 256, 1.0, "5", True],
    "truncation_side": ["middle", 5, ["left"]],
    "prompt_logprobs": [-1, 21, 10**9, True, "1", 1.0],
    "echo": [1, "yes", []],
    "model": ["nope", "", 5],
    "stream_options": [5, {"include_usage": "yes"}],
}
BAD_CHAT = {
    "messages": [
        None,
        [],
        "hi",
        {},
        [5],
        [{}],
        [{"role": "foo", "content": "x"}],
        [{"role": ["user"], "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": "x", "name": 5}],
        [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}],
        [{"role": "tool", "content": "x"}],
        [{"role": "user", "content": "x" * 300}],
        [{"role": "user", "content": "x" * 100_000}],
    ],
    "max_completion_tokens": [0, "x", 10**9],
    "logprobs": [1, "yes"],
    "top_logprobs": [-1, 21, 10**9, True, 3],
    "tools": [[{}], 5],
    "tool_choice": ["required", {"type": "function"}],
    "chat_template": ["{{ x }}"],
    "chat_template_kwargs": [
        5,
        [1],
        "x",
        {"tokenize": True},
        {"messages": []},
        {"tools": 1},
        {"add_generation_prompt": "x"},
        {"bos_token": "x"},
        {"raise_exception": 1},
        {"x" * 65: 1},
        {f"x{number}": 1 for number in range(65)},
        {"x": json.loads("[" * 20 + "]" * 20)},
        {"x": [1] * 1000},
        {"x": [[], [{"y": [1] * 500}], {str(number): [] for number in range(500)}]},
        {"x": "y" * 65_536},
        {f"x{number}": "y" * 2000 for number in range(40)},
    ],
    "add_generation_prompt": [1, "yes"],
    "continue_final_message": [1, "yes"],
}
BAD_COMPLETIONS = {
    "prompt": [
        None,
        "",
        [],
        [[]],
        [""],
        5,
        {},
        True,
        [5279552648203111001],
        [-1],
        [1.5],
        [True],
        [1, "a"],
        [[1], 2],
        ["a", 5],
        ["a"] * 65,
        [1] * 256,
        "x" * 100_000,
    ],
    "logprobs": [-1, 21, 10**9, True, "1"],
    "top_logprobs": [3, "x"],
    "max_completion_tokens": [0, "x", 10**9],
    "suffix": ["x"],
}

CASES = [
    *((CHAT, field, value) for field, values in BAD_SAMPLING.items() for value in values),
    *((CHAT, field, value) for field, values in BAD_CHAT.items() for value in values),
    *((COMPLETIONS, field, value) for field, values in BAD_SAMPLING.items() for value in values),
    *((COMPLETIONS, field, value) for field, values in BAD_COMPLETIONS.items() for value in values),
]


def is_openai_error(body: object) -> bool:
    return isinstance(body, dict) and body["error"].keys() == {"message", "type", "param", "code"}


def test_bad_values_are_refused_naming_the_field(run, serve):
    async def main():
        async with serve() as served:
            wrong = []
            for path, field, value in CASES:
                base = {"messages": HI} if path == CHAT else {"prompt": "x"}
                for stream in (False, True):
                    body = {**base, "stream": stream, field: value}
                    response = await served.http.post(path, json=body)
                    expected = 404 if field == "model" else 400
                    error = response.json()["error"] if response.status_code >= 400 else {}
                    named = str(error.get("param")).startswith(field)
                    if response.status_code != expected or not named:
                        wrong.append((path, field, str(value)[:40], response.text[:200]))
                    assert is_openai_error(response.json())

            assert wrong == []
            assert len(CASES) >= 60
            assert served.front.engine.submits() == []
            assert served.front.is_clean()

    run(main())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b'{"prompt": "x"',
        b"{:",
        b"[]",
        b"5",
        b"null",
        b"\xef\xbb\xbf{}",
        "你好".encode("gbk"),
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": Infinity}',
        b'{"prompt": "x", "top_p": -Infinity}',
        b'{"prompt": "x", "min_p": 1e999}',
        b'{"a":' * 3000 + b"1" + b"}" * 3000,
        b'{"prompt": "x", "max_tokens": 100000000000000000000000000000}',
        b'{"prompt": "x", "temperature": 1' + b"0" * 400 + b"}",
    ],
)
def test_bodies_that_are_no_request_are_refused(run, serve, body):
    async def main():
        async with serve() as served:
            for path in (CHAT, COMPLETIONS):
                response = await served.http.post(path, content=body)
                assert response.status_code == 400
                assert is_openai_error(json.loads(response.content))

    run(main())


MANY = b'{"prompt":["x","y"]'
NUMBERS = (
    "n",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "prompt_logprobs",
    "temperature",
    "top_k",
    "seed",
    "priority",
    "truncate_prompt_tokens",
)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_numbers_of_thousands_of_digits_are_refused_for_what_they_are(run, serve, path):
    """Python refuses to write them down."""

    async def main():
        async with serve() as served:
            for field in NUMBERS:
                for sign in (b"", b"-"):
                    body = {CHAT: b'{"messages":[{"role":"user","content":"x"}]', COMPLETIONS: MANY}
                    huge = b',"logprobs":%b,"%b":%b%b}' % (
                        b"true" if path == CHAT else b"5",
                        field.encode(),
                        sign,
                        b"9" * (4300 - len(sign)),
                    )
                    response = await served.http.post(path, content=body[path] + huge)
                    assert response.status_code == 400, field
                    assert response.json()["error"]["param"] == field

    run(main())


def test_lone_surrogates_are_refused_wherever_text_is_read(run, serve):
    async def main():
        async with serve() as served:
            for body in (
                b'{"messages":[{"role":"user","content":"\\ud800"}]}',
                b'{"messages":[{"role":"\\udfff","content":"x"}]}',
                b'{"messages":[{"role":"user","content":"x"}],"stop":"\\ud800"}',
                b'{"messages":[{"role":"user","content":"x"}],"bad_words":["\\ud800"]}',
                b'{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":["\\ud800"]}}',
                b'{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":{"\\ud800":1}}}',
            ):
                assert (await served.http.post(CHAT, content=body)).status_code == 400

    run(main())


def test_http_itself_errs_in_the_same_shape(run, serve):
    async def main():
        async with serve() as served:
            big = {"prompt": "x" * (5 << 20)}
            for response, status in (
                (await served.http.get("/nope"), 404),
                (await served.http.get("/v1/"), 404),
                (await served.http.get("/v1/models/nope"), 404),
                (await served.http.get(CHAT), 405),
                (await served.http.post("/v1/models"), 405),
                (await served.http.post(COMPLETIONS, json=big), 413),
                (
                    await served.http.post(
                        COMPLETIONS, content=b"x", headers={"content-encoding": "gzip"}
                    ),
                    415,
                ),
            ):
                assert response.status_code == status
                assert is_openai_error(response.json())
            assert "tiny" in (await served.http.get("/v1/models/nope")).text

    run(main())


def test_a_chunked_body_is_limited_too(run, serve):
    async def endless():
        for _ in range(80):
            yield b"x" * (1 << 16)

    async def main():
        async with serve() as served:
            response = await served.http.post(COMPLETIONS, content=endless())
            assert response.status_code == 413

    run(main())


def test_a_full_queue_answers_503_with_when_to_retry(run, serve):
    async def main():
        async with serve(limits=Limits(max_queued=1)) as served:
            served.front.engine.auto = False
            _, writer = await served.raw(COMPLETIONS, {"prompt": "x"})
            await served.front.engine.until(lambda: bool(served.front.engine.waiting))
            for stream in (False, True):
                refused = await served.http.post(
                    COMPLETIONS, json={"prompt": "x", "stream": stream}
                )
                assert refused.status_code == 503
                assert refused.json()["error"]["code"] == "queue_full"
                assert refused.headers["retry-after"] == "1"
                assert refused.headers["retry-after-ms"] == "1000"
            writer.close()
            await served.front.engine.until(served.front.is_clean)

    run(main())


def test_too_many_choices_over_all_prompts_are_refused(run, serve):
    async def main():
        async with serve(limits=Limits(max_queued=20)) as served:
            body = {"prompt": ["x"] * 5, "n": 5}
            assert (await served.http.post(COMPLETIONS, json=body)).status_code == 400

    run(main())
