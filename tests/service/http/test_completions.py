"""/v1/completions as clients see it."""

from __future__ import annotations

from dataclasses import replace

from cadenza.service import validation
from cadenza.service.http.completions import Completions
from cadenza.wire.arrays import pack_ids, view_ids

COMPLETIONS = "/v1/completions"


def test_the_openai_client_reads_both_modes(run, serve):
    async def main():
        async with serve() as served:
            served.front.says("hello 😀")
            async with served.openai as client:
                whole = await client.completions.create(model="alias", prompt="x", max_tokens=50)
                stream = await client.completions.create(
                    model="alias", prompt="x", max_tokens=50, stream=True
                )
                chunks = [chunk async for chunk in stream]

            assert whole.object == "text_completion"
            assert whole.id.startswith("cmpl-")
            assert whole.choices[0].text == "hello 😀"
            assert "".join(chunk.choices[0].text for chunk in chunks) == "hello 😀"
            assert chunks[-1].choices[0].finish_reason == "stop"

    run(main())


def test_every_kind_of_prompt_is_read(run, serve):
    async def main():
        async with serve() as served:
            for prompt, count in (
                ("a", 1),
                (["a", "b"], 2),
                ([1, 2], 1),
                ([[1], [2, 3]], 2),
                (["a", [1]], 2),
            ):
                body = {"prompt": prompt, "n": 2, "max_tokens": 2}
                whole = (await served.http.post(COMPLETIONS, json=body)).json()
                events = await served.events(COMPLETIONS, body)

                indices = [choice["index"] for choice in whole["choices"]]
                assert indices == list(range(2 * count))
                ends = [
                    choice["index"]
                    for event in events[:-1]
                    for choice in event["choices"]
                    if choice["finish_reason"]
                ]
                assert sorted(ends) == indices
                assert whole["usage"]["completion_tokens"] == 4 * count
                for index in indices:
                    text = "".join(
                        choice["text"]
                        for event in events[:-1]
                        for choice in event["choices"]
                        if choice["index"] == index
                    )
                    assert text == whole["choices"][index]["text"]

    run(main())


def test_sixteen_tokens_are_the_default(run, serve):
    async def main():
        async with serve() as served:
            await served.http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": None})
            assert served.front.engine.submits()[0].max_tokens == 16

    run(main())


def test_the_newer_name_of_max_tokens_is_read(run, serve):
    async def main():
        async with serve() as served:
            body = {"prompt": "x", "max_tokens": 9, "max_completion_tokens": 3}
            await served.http.post(COMPLETIONS, json=body)
            assert served.front.engine.submits()[0].max_tokens == 3

    run(main())


def test_false_asks_for_no_logprobs(run, serve):
    async def main():
        async with serve() as served:
            response = await served.http.post(COMPLETIONS, json={"prompt": "x", "logprobs": False})
            assert response.json()["choices"][0]["logprobs"] is None
            assert served.front.engine.submits()[0].sampling.logprobs is None

    run(main())


def test_special_tokens_are_left_out_where_the_client_says_so(run, serve):
    async def main():
        async with serve() as served:
            bos = 5
            served.front.tokenizer.prefix = [bos]
            for given in ({}, {"add_special_tokens": False}, {"add_special_tokens": True}):
                response = await served.http.post(COMPLETIONS, json={"prompt": "x", **given})
                assert response.status_code == 200
            prompts = [view_ids(submit.prompt) for submit in served.front.engine.submits()]
            assert [prompt[0] == bos for prompt in prompts] == [True, False, True]

    run(main())


def test_logprobs_are_parallel_lists_with_running_offsets(run, serve):
    async def main():
        async with serve() as served:
            served.front.says("hello")
            body = {"prompt": "x", "logprobs": 2, "max_tokens": 3, "stop": ["zzzz"]}
            whole = (await served.http.post(COMPLETIONS, json=body)).json()
            logprobs = whole["choices"][0]["logprobs"]
            events = await served.events(COMPLETIONS, body)

            assert logprobs["tokens"] == ["he", "ll", "o"]
            assert logprobs["text_offset"] == [0, 2, 4]
            assert logprobs["token_logprobs"] == [-0.5] * 3
            assert logprobs["top_logprobs"][0] == {"!": -0.25, '"': -9999.0, "he": -0.5}
            chunks = [event["choices"][0]["logprobs"] for event in events[:-1]]
            for name, values in logprobs.items():
                assert [value for chunk in chunks if chunk for value in chunk[name]] == values

    run(main())


def test_control_tokens_in_a_raw_prompt_are_real(run, serve):
    async def main():
        async with serve() as served:
            await served.http.post(COMPLETIONS, json={"prompt": "<|im_start|>a", "max_tokens": 1})
            ids = memoryview(served.front.engine.submits()[0].prompt).cast("i").tolist()
            assert ids[0] == served.front.tokenizer.backend.token_to_id("<|im_start|>")

    run(main())


def test_a_call_with_one_wrong_prompt_starts_none(run, serve):
    async def main():
        async with serve() as served:
            body = {"prompt": ["right", "x" * 100_000], "max_tokens": 2}
            assert (await served.http.post(COMPLETIONS, json=body)).status_code == 400
            assert served.front.engine.submits() == []
            assert served.front.is_clean()

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
