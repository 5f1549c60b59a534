"""What favours and forbids tokens, in both dialects, on its way to the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cadenza.service import validation
from cadenza.service.http.completions import Completions
from cadenza.wire.arrays import pack_ids, view_floats, view_ids
from cadenza.wire.messages import Sampling

COMPLETIONS = "/v1/completions"
CALLS = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    (COMPLETIONS, {"prompt": "hi"}),
]


def biases(sampling: Sampling) -> dict[int, float]:
    ids, values = view_ids(sampling.bias_ids), view_floats(sampling.biases)
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


@pytest.mark.parametrize(("path", "body"), CALLS)
@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, ({}, [], (), 0)),
        (
            {"logit_bias": None, "allowed_token_ids": None, "bad_words": None, "min_tokens": None},
            ({}, [], (), 0),
        ),
        ({"logit_bias": {}, "bad_words": [], "min_tokens": 0}, ({}, [], (), 0)),
        ({"logit_bias": {"5": -100, "0": 2.5}}, ({5: -100.0, 0: 2.5}, [], (), 0)),
        ({"allowed_token_ids": [7, 5, 7]}, ({}, [5, 7], (), 0)),
        ({"min_tokens": 3}, ({}, [], (), 3)),
        ({"min_tokens": 3, "ignore_eos": True}, ({}, [], (), 0)),  # nothing ends it sooner
    ],
)
def test_constraints_reach_the_engine(run, serve, path, body, given, sent):
    async def main():
        async with serve() as served:
            for stream in (False, True):
                request = {**body, **given, "max_tokens": 4, "stream": stream}
                response = await served.http.post(path, json=request)
                assert response.status_code == 200, response.text

            for submit in served.front.engine.submits():
                found = submit.sampling
                allowed = view_ids(found.allowed_ids).tolist()
                assert (biases(found), allowed, found.bad_words, found.min_tokens) == sent

    run(main())


def spelt(served: Any, *words: str) -> set[tuple[int, ...]]:
    return {tuple(served.front.tokenizer.encode_text(word)) for word in words}


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
            body = {"prompt": "x", "bad_words": words, "max_tokens": 1}
            assert (await served.http.post(COMPLETIONS, json=body)).status_code == 200
            [submit] = served.front.engine.submits()
            assert set(submit.sampling.bad_words) == spelt(served, *spellings)
            assert len(submit.sampling.bad_words) == len(set(spellings))

    run(main())


@pytest.mark.parametrize(("path", "body"), CALLS)
def test_a_minimum_puts_off_whatever_would_end_a_choice(run, serve, path, body):
    async def main():
        async with serve() as served:
            eos = served.front.engine.eos
            for given, ending in (
                ({}, (eos,)),
                ({"stop_token_ids": [9, 5]}, (5, 9, eos)),
                ({"stop_token_ids": [9, 5], "ignore_eos": True}, (5, 9)),
                ({"stop_token_ids": [eos], "ignore_eos": True}, (eos,)),
            ):
                request = {**body, **given, "min_tokens": 1, "max_tokens": 1}
                assert (await served.http.post(path, json=request)).status_code == 200
                assert served.front.engine.submits()[-1].sampling.ending_ids == ending

    run(main())


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"min_tokens": 17}, "min_tokens"),  # above the default of 16
        ({"min_tokens": 1, "stop_token_ids": [5], "allowed_token_ids": [5]}, "allowed_token_ids"),
        ({"bad_words": ["a"], "allowed_token_ids": [64]}, "bad_words"),
        ({"bad_words": ["zza"], "allowed_token_ids": [64]}, "bad_words"),  # after zz
        (
            {
                "bad_words": ["a"],
                "allowed_token_ids": [64, 5],
                "min_tokens": 1,
                "stop_token_ids": [5],
            },
            "bad_words",
        ),
    ],
)
def test_what_would_leave_no_token_is_refused(run, serve, given, param):
    async def main():
        async with serve() as served:
            assert served.front.tokenizer.encode_text("a") == [64]
            response = await served.http.post(COMPLETIONS, json={"prompt": "x", **given})
            assert response.status_code == 400
            assert response.json()["error"]["param"] == param
            assert served.front.engine.submits() == []
            assert served.front.is_clean()

    run(main())


def test_a_minimum_beyond_the_context_is_refused_with_the_right_numbers(run, serve):
    async def main():
        async with serve(max_model_len=32) as served:
            prompt = {"messages": [{"role": "user", "content": "hi"}]}
            chat = "/v1/chat/completions"
            used = (await served.http.post(chat, json=prompt)).json()["usage"]["prompt_tokens"]
            for min_tokens, status in ((32 - used, 200), (33 - used, 400)):
                response = await served.http.post(chat, json={**prompt, "min_tokens": min_tokens})
                assert response.status_code == status
            assert f"leaves {32 - used} of" in response.json()["error"]["message"]

    run(main())


@pytest.mark.parametrize(
    ("min_tokens", "text", "stop"),
    [(0, "", "a"), (1, "ab", "a"), (2, "ab", "a"), (4, "abac", None)],
)
def test_stop_strings_are_not_looked_for_below_the_minimum(run, serve, min_tokens, text, stop):
    async def main():
        async with serve() as served:
            served.front.says("abac")
            body = {"prompt": "x", "stop": "a", "min_tokens": min_tokens, "max_tokens": 4}
            whole = (await served.http.post(COMPLETIONS, json=body)).json()["choices"][0]
            events = await served.events(COMPLETIONS, body)

            streamed = "".join(event["choices"][0]["text"] for event in events[:-1])

            assert whole["text"] == streamed == text
            assert whole["stop_reason"] == stop
            assert whole["finish_reason"] == ("stop" if stop else "length")
            await served.front.engine.until(served.front.is_clean)

    run(main())


def test_a_stop_string_that_begins_below_the_minimum_is_none(run, serve):
    async def main():
        async with serve() as served:
            served.front.says("abab")
            body = {"prompt": "x", "stop": "ab", "min_tokens": 1, "max_tokens": 8}
            choice = (await served.http.post(COMPLETIONS, json=body)).json()["choices"][0]
            assert (choice["text"], choice["stop_reason"]) == ("ab", "ab")

    run(main())


def test_what_all_prompts_of_a_call_have_in_common_is_looked_at_once(run, open_front, monkeypatch):
    """A list of allowed ids may be as long as the vocabulary, and a call have 64 prompts."""
    seen = []
    checked = validation.constraints

    def counted(request, *args):
        seen.append(request)
        return checked(request, *args)

    monkeypatch.setattr(validation, "constraints", counted)

    async def main():
        async with open_front() as front:
            body = {
                "prompt": [[5], [6], [7]],
                "allowed_token_ids": [7, 5],
                "temperature": 0.5,
                "max_tokens": 1,
            }
            requests = Completions().parse(body).requests
            for generation in await front.generator.submit_all(requests):
                assert [batch async for batch in generation]
            submits = front.engine.submits()
            assert len(seen) == 1
            assert [view_ids(submit.prompt).tolist() for submit in submits] == [[5], [6], [7]]
            assert {submit.sampling.temperature for submit in submits} == {0.5}
            assert {submit.sampling.allowed_ids for submit in submits} == {pack_ids([5, 7])}
            assert len({submit.sampling.seed for submit in submits}) == 3
            other = replace(requests[1], temperature=0.25)
            for generation in await front.generator.submit_all([requests[0], other]):
                assert [batch async for batch in generation]
            temperatures = [each.sampling.temperature for each in front.engine.submits()[3:]]
            assert temperatures == [0.5, 0.25]

    run(main())
