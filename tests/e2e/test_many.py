"""Many requests through a pool that holds an eighth of them: none lost, none doubled."""

from __future__ import annotations

from collections import Counter
from typing import Any

import grpc
import numpy as np
import pytest

from cadenza.policies.profile import Profile
from cadenza.scheduler.states import FinishReason
from cadenza.testing import Driver
from tests.e2e.conftest import BLOCK_SIZE, DemoModel, Serve
from tests.e2e.test_serving import ReflectedSession, gauges, is_idle, until

NUM_REQUESTS = 64
NUM_TOKENS = 18  # more than a block
LONGEST = 40  # prompt tokens
HELD = 8  # finished requests of the longest kind that the small pool holds

SMALL_POOL = HELD * -(-(LONGEST + NUM_TOKENS) // BLOCK_SIZE)
OVER_COMMIT = Profile({"reserve_blocks": "none"})


def prompts(num: int) -> list[list[int]]:
    """Token ids, no two prompts alike, of lengths from 4 to LONGEST."""
    chance = np.random.default_rng(3)
    lengths = np.linspace(4, LONGEST, num).round().astype(int)
    return [chance.integers(100, 40_000, length).tolist() for length in lengths]


def run_all(
    demo: DemoModel,
    num_requests: int = NUM_REQUESTS,
    num_tokens: int = NUM_TOKENS,
    profile: Profile | None = None,
    **limits: object,
) -> Driver:
    """All requests, arriving at once. On return every block is back (`Driver.run` asserts it)."""
    driver, _ = demo.drive(profile, **limits)
    driver.runner = demo.runner  # without the recorder, which digests every row's logits
    for request, prompt in enumerate(prompts(num_requests)):
        driver.add(request, prompt, max_tokens=num_tokens)
    driver.run()
    return driver


@pytest.fixture(scope="module")
def undisturbed(demo_auto: DemoModel, one_thread: None) -> Driver:
    driver = run_all(demo_auto, max_num_seqs=NUM_REQUESTS)
    assert not driver.preempted
    return driver


@pytest.mark.timeout(400)
def test_64_requests_survive_a_pool_of_8(demo_auto: DemoModel, undisturbed: Driver):
    driver = run_all(
        demo_auto,
        profile=OVER_COMMIT,
        num_blocks=SMALL_POOL,
        max_model_len=SMALL_POOL * BLOCK_SIZE,
        max_num_seqs=32,
    )

    assert len(set(driver.preempted)) >= 8, "too few requests were preempted to prove anything"
    assert driver.ends == dict.fromkeys(range(NUM_REQUESTS), FinishReason.LENGTH)
    assert {len(tokens) for tokens in driver.tokens.values()} == {NUM_TOKENS}
    assert driver.tokens == undisturbed.tokens


SESSION_REQUESTS = 24
SESSION_TOKENS = 24  # likewise
ONE_THREAD = ("--threads", "1")


def serve_all(address: str) -> dict[str, list[Any]]:
    """Every request over one Session, all submitted at once: its events, in order."""
    events: dict[str, list[Any]] = {}
    with grpc.insecure_channel(address) as channel:
        session = ReflectedSession(channel)
        submits = [
            session.submit(
                f"request-{number}",
                input={
                    "token_ids": {"ids": prompt},
                    "max_tokens": SESSION_TOKENS,
                    "ignore_eos": True,
                    "temperature": 0.0,
                },
            )
            for number, prompt in enumerate(prompts(SESSION_REQUESTS))
        ]
        for response in session.call(iter(submits)):
            for event in response.events:
                events.setdefault(event.request_id, []).append(event)
    return events


def kinds(events: list[Any]) -> Counter[str]:
    return Counter(event.WhichOneof("event") for event in events)


def tokens(events: list[Any]) -> list[int]:
    given = (event.tokens.token_ids for event in events if event.HasField("tokens"))
    return [token for ids in given for token in ids]


@pytest.mark.timeout(240)
def test_one_session_survives_a_pool_of_4(serve: Serve, demo_auto: DemoModel, one_thread: None):
    """The served process; its pool holds four of the 24 requests once they have finished.

    They get what the model gives in this process, where there is room for all.
    """
    per_request = -(-(LONGEST + SESSION_TOKENS) // BLOCK_SIZE)
    blocks = ("--num-blocks", str(4 * per_request), "--block-size", str(BLOCK_SIZE))
    small = serve(*blocks, "--policy", "reserve_blocks=none", *ONE_THREAD)

    served = serve_all(small.grpc)

    assert len(served) == SESSION_REQUESTS
    for request, events in served.items():
        seen = kinds(events)
        assert (seen["accepted"], seen["choice_finished"], seen["finished"]) == (1, 1, 1), request
        assert seen["failed"] == 0, request
        assert events[-1].finished.usage.completion_tokens == SESSION_TOKENS
        assert len(tokens(events)) == SESSION_TOKENS
    assert gauges(small)["cadenza:num_preemptions_total"] > 0
    until(small, is_idle)
    assert small.stop() == 0
    undisturbed = run_all(demo_auto, SESSION_REQUESTS, SESSION_TOKENS)
    assert not undisturbed.preempted
    assert [tokens(served[f"request-{number}"]) for number in range(SESSION_REQUESTS)] == [
        undisturbed.tokens[number] for number in range(SESSION_REQUESTS)
    ]
