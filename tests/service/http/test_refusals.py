"""What only HTTP can say wrongly is refused in OpenAI's shape; all else: `service/behaviour`."""

from __future__ import annotations

import json

import pytest

from cadenza.service.limits import Limits

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logprobs", 1),
        ("logprobs", "yes"),
        ("top_logprobs", True),
        ("top_logprobs", 3),  # without the switch
        ("stream_options", 5),
        ("stream_options", {"include_usage": "yes"}),
    ],
)
def test_what_only_http_can_say_wrongly_is_refused_by_name(run, serve, field, value):
    """All else: `tests/service/behaviour`."""

    async def main():
        async with serve() as served:
            for stream in (False, True):
                body = {"messages": HI, "stream": stream, field: value}
                response = await served.http.post(CHAT, json=body)
                assert response.status_code == 400
                assert is_openai_error(response.json())
                assert response.json()["error"]["param"].startswith(field)

    run(main())


def is_openai_error(body: object) -> bool:
    return isinstance(body, dict) and body["error"].keys() == {"message", "type", "param", "code"}


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
        b'{"prompt": "x", "presence_penalty": NaN}',
        b'{"prompt": "x", "frequency_penalty": -1e999}',
        b'{"prompt": "x", "repetition_penalty": Infinity}',
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


@pytest.mark.parametrize("depth", [65, 400, 900, 100_000])
def test_bodies_that_are_nested_too_deep_are_refused_wherever_they_are(run, serve, depth):
    """Whoever walks over a value, or quotes it, would come to the end of the stack."""

    async def main():
        async with serve() as served:
            deep = "[" * depth + "]" * depth
            for path in (CHAT, COMPLETIONS, "/tokenize", "/detokenize"):
                for field in ("prompt", "stop", "temperature", "stream_options", "unknown"):
                    response = await served.http.post(path, content=f'{{"{field}": {deep}}}')
                    assert response.status_code == 400
                    assert "more than 64 deep" in response.json()["error"]["message"]
            allowed = {"prompt": "x", "max_tokens": 1, "unknown": json.loads("[" * 62 + "]" * 62)}
            assert (await served.http.post(COMPLETIONS, json=allowed)).status_code == 200

    run(main())


def test_many_lists_beside_each_other_are_not_deep(run, serve):
    async def main():
        async with serve() as served:
            body = {"prompt": "x", "max_tokens": 1, "unknown": [[{}]] * 1000}
            assert (await served.http.post(COMPLETIONS, json=body)).status_code == 200

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


def test_too_many_choices_over_all_prompts_are_refused(run, serve):
    async def main():
        async with serve(limits=Limits(max_queued=20)) as served:
            body = {"prompt": ["x"] * 5, "n": 5}
            assert (await served.http.post(COMPLETIONS, json=body)).status_code == 400

    run(main())
