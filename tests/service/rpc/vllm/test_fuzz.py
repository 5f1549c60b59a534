"""Whatever is sent to vLLM's service, it is answered, and nothing is left of it."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

pytest.importorskip("smg_grpc_proto")

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from tests.service.rpc.fuzz_checks import ALLOWED
from tests.service.rpc.fuzzer import Fuzzer
from tests.service.rpc.vllm.asking import GENERATE, Told
from tests.service.rpc.vllm.asking import tell as told_by

NUM, AT_ONCE = 500, 10
TIMEOUTS_S = (None, None, None, 0.002, 5.0)


async def test_random_and_hostile_requests_are_answered(serve_vllm, tell):
    seen = Counter[str]()
    async with serve_vllm() as served:
        for begin in range(0, NUM, AT_ONCE):
            seeds = range(begin, begin + AT_ONCE)
            seen.update(await asyncio.gather(*(call(served, seed) for seed in seeds)))

    tell(f"{dict(seen)}")
    assert seen["OK"] > 20
    assert seen["INVALID_ARGUMENT"] > 20


async def call(served, seed: int) -> str:
    """Make one; the name of its end."""
    fuzzer = Fuzzer(seed)
    chance = fuzzer.chance
    request = made(fuzzer)
    encoded = request.SerializeToString()
    if is_garbled := chance.random() < 0.1:
        encoded = fuzzer.garbled(encoded)
    generating = served.channel.unary_stream(
        GENERATE, response_deserializer=pb.GenerateResponse.FromString
    )(encoded, timeout=chance.choice(TIMEOUTS_S))
    async with asyncio.timeout(20):
        reading = asyncio.create_task(told_by(generating))
        if chance.random() < 0.2:
            await served.stub.Abort(pb.AbortRequest(request_ids=[chance.choice("abcd")]))
        told = await reading
    assert told.code.value[0] in ALLOWED, (seed, told.code, told.details)
    if told.code.name == "OK" and not is_garbled:
        check(request, told)
    return str(told.code.name)


def made(fuzzer: Fuzzer) -> pb.GenerateRequest:
    """Hostile all over, or, mostly, without what is never served."""
    if fuzzer.chance.random() < 0.2:
        return fuzzer.message(pb.GenerateRequest)
    params = fuzzer.message(pb.SamplingParams)
    params.ClearField("grammar_from_first_token")
    if (constraint := params.WhichOneof("constraint")) is not None:
        params.ClearField(constraint)
    return pb.GenerateRequest(
        request_id=fuzzer.chance.choice("abcd"),
        tokenized=fuzzer.message(pb.TokenizedInput),
        sampling_params=params,
        stream=fuzzer.chance.random() < 0.5,
    )


def check(request: pb.GenerateRequest, told: Told) -> None:
    """Each choice ends once; the chunks have its tokens."""
    params = request.sampling_params
    assert sorted(complete.index for complete in told.completes) == [*range(params.n or 1)]
    for complete in told.completes:
        assert complete.finish_reason in ("stop", "length", "abort")
        assert len(complete.output_ids) == complete.completion_tokens
        if request.stream:
            assert told.ids(complete.index) == list(complete.output_ids)
    assert request.stream or not told.chunks
