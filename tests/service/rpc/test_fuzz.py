"""Whatever a client sends, the service answers it, and others are answered as before."""

from __future__ import annotations

import pytest
import uvloop

from cadenza.v1 import generation_pb2 as pb
from tests.service.rpc.fuzzer import Fuzzer
from tests.service.rpc.fuzzing import fuzz

NUM, NUM_EXTRA = 1500, 6000  # calls


def test_random_and_hostile_calls_are_answered_and_harm_nobody(tell):
    seen = uvloop.run(fuzz(0, NUM))

    tell(f"{dict(seen)}")
    # It is about requests that are served as much as about those that are refused
    for kind in ("OK", "INVALID_ARGUMENT", "session OK", "finished", "failed 3", "failed 5"):
        assert seen[kind] > 20, kind


@pytest.mark.extra
def test_many_random_and_hostile_calls_are_answered_and_harm_nobody(tell):
    seen = uvloop.run(fuzz(NUM, NUM_EXTRA))

    tell(f"{dict(seen)}")


def test_the_same_seed_makes_the_same_messages():
    made = [
        [fuzzer.message(kind) for kind in (pb.SessionRequest, pb.GenerateRequest) for _ in range(9)]
        for fuzzer in (Fuzzer(7), Fuzzer(7))
    ]

    # Serialised, a NaN is like itself
    first, second = (
        [message.SerializeToString(deterministic=True) for message in each] for each in made
    )
    assert first == second


def test_every_field_of_a_request_is_set_now_and_then():
    seen: set[str] = set()
    for seed in range(400):
        message = Fuzzer(seed).message(pb.GenerateRequest)
        seen |= {field.name for field, _ in message.input.ListFields()}
    for seed in range(200):
        seen |= {field.name for field, _ in Fuzzer(seed).message(pb.SessionRequest).ListFields()}

    inputs = {field.name for field in pb.GenerationInput.DESCRIPTOR.fields}
    actions = {field.name for field in pb.SessionRequest.DESCRIPTOR.fields}
    assert seen == inputs | actions
