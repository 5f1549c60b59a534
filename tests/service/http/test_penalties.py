"""Penalties, in both dialects, on their way to the engine."""

from __future__ import annotations

import json

import pytest

from cadenza.wire.messages import Sampling

CALLS = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/completions", {"prompt": "hi"}),
]


def penalties(sampling: Sampling) -> tuple[float, float, float]:
    return sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty


@pytest.mark.parametrize(("path", "body"), CALLS)
@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, (0.0, 0.0, 1.0)),
        (
            {"presence_penalty": None, "frequency_penalty": None, "repetition_penalty": None},
            (0.0, 0.0, 1.0),
        ),
        (
            {"presence_penalty": 2, "frequency_penalty": -2, "repetition_penalty": 1},
            (2.0, -2.0, 1.0),
        ),
        (
            {"presence_penalty": -0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.1},
            (-0.5, 0.25, 1.1),
        ),
        ({"repetition_penalty": 0.01}, (0.0, 0.0, 0.01)),
        ({"repetition_penalty": 100}, (0.0, 0.0, 100.0)),
    ],
)
def test_penalties_reach_the_engine(run, serve, path, body, given, sent):
    async def main():
        async with serve() as served:
            for stream in (False, True):
                request = {**body, **given, "max_tokens": 1, "stream": stream}
                response = await served.http.post(path, json=request)
                assert response.status_code == 200, response.text

            submits = served.front.engine.submits()
            assert [penalties(submit.sampling) for submit in submits] == [sent] * 2
            values = [value for submit in submits for value in penalties(submit.sampling)]
            assert {type(value) for value in values} == {float}

    run(main())


@pytest.mark.parametrize(("path", "body"), CALLS)
@pytest.mark.parametrize("field", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_what_is_no_number_never_reaches_the_engine(run, serve, path, body, field):
    async def main():
        async with serve() as served:
            for value in ("NaN", "Infinity", "-1e999", '"1"', "true"):
                content = json.dumps(body)[:-1] + f', "{field}": {value}}}'
                response = await served.http.post(path, content=content.encode())
                assert response.status_code == 400, value
            assert served.front.engine.submits() == []

    run(main())
