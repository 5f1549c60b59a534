"""No call may ask for more log-probabilities than are told in reasonable time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from cadenza.service.errors import InvalidRequest
from cadenza.service.limits import Limits
from cadenza.service.logprob_limits import MAX_LOGPROBS, refuse_costly
from cadenza.service.request import GenerationRequest
from cadenza.service.validation import check

from .entering import READY

CONTEXT = 1 << 16
LONG = msgspec.structs.replace(READY, max_model_len=CONTEXT)
IDS = [5] * (CONTEXT // 2)
CHAT = [{"role": "user", "content": "x"}]
# As many as the bound allows, told at each of as many tokens
TOP = MAX_LOGPROBS // CONTEXT - 1


def cost_is_taken(*requests: dict[str, Any]) -> bool:
    checked = [check(GenerationRequest(**each), Limits(), LONG) for each in requests]
    try:
        refuse_costly(checked, CONTEXT)
    except InvalidRequest:
        return False
    return True


@pytest.mark.parametrize(
    ("most", "more"),
    [
        ({"messages": CHAT, "logprobs": TOP}, {"logprobs": TOP + 1}),
        ({"text": "x", "logprobs": TOP, "n": 2, "max_tokens": CONTEXT // 2}, {"n": 3}),
        ({"text": "x", "logprobs": 20, "max_tokens": 9}, {"max_tokens": CONTEXT}),
        ({"text": "x" * CONTEXT, "prompt_logprobs": TOP, "max_tokens": 1}, {"n": 2}),
        ({"token_ids": IDS, "prompt_logprobs": TOP, "n": 2, "max_tokens": 0}, {"n": 3}),
        ({"messages": CHAT, "prompt_logprobs": TOP, "n": 9, "max_tokens": 1}, {"logprobs": 0}),
        (
            {"token_ids": IDS, "logprobs": TOP, "echo": True, "n": 2, "max_tokens": 0},
            {"prompt_logprobs": 0},
        ),
    ],
)
def test_what_may_be_told_at_most_is_counted_with_every_choice(
    most: dict[str, Any], more: dict[str, Any]
) -> None:
    assert cost_is_taken(most)
    assert not cost_is_taken(most | more)


def test_the_requests_of_one_call_count_together() -> None:
    half = {"token_ids": IDS, "prompt_logprobs": TOP, "max_tokens": 1}

    assert cost_is_taken(half, half)
    assert not cost_is_taken(half, half, half)


def test_a_call_that_comes_while_the_engine_loads_is_counted_too(run, open_front) -> None:
    async def main() -> None:
        async with open_front(ready=False, max_model_len=CONTEXT) as front:
            request = GenerationRequest(text="x", logprobs=20)
            submitting = asyncio.create_task(front.generator.submit(request))
            await asyncio.sleep(0)
            front.engine.become_ready()
            with pytest.raises(InvalidRequest, match="more than 1048576"):
                await submitting

    run(main())
