"""Frames survive any splitting of the stream, and garbage is refused."""

import pytest

from cadenza.wire.codec import MAX_FRAME_BYTES, FrameError, FrameReader, encode
from cadenza.wire.messages import (
    Cancel,
    EngineConfig,
    Failed,
    Finish,
    Progress,
    Ready,
    RowLogprobs,
    Sampling,
    Shutdown,
    Start,
    Step,
    Submit,
    ToEngine,
    ToFront,
)

FRONT_TO_ENGINE = [
    Start(EngineConfig(model="/m.gguf", profile={"order_admissions": "fcfs"})),
    Submit(
        request=1 << 40,
        choice=3,
        prompt=b"\1\0\0\0",
        max_tokens=5,
        sampling=Sampling(temperature=0.5, seed=(1 << 64) - 1, logprobs=0),
        stop_token_ids=(7, 8),
        tenant="t",
    ),
    Cancel(1),
    Finish(2, tokens_kept=9),
    Shutdown(),
]
ENGINE_TO_FRONT = [
    Progress("weights", 3, 10),
    Ready(
        max_model_len=1,
        vocab_size=2,
        eos_token_ids=(3,),
        num_blocks=4,
        block_size=5,
        max_num_seqs=6,
        max_num_batched_tokens=7,
        device="cpu",
        dtype="float32",
        load_s=0.5,
    ),
    Step(step_id=1, requests=b"12345678", logprobs=(RowLogprobs(0, -0.5, b"a", b"b"),)),
    Failed("no", request=4),
    Failed("dead"),
]


@pytest.mark.parametrize(
    ("direction", "messages"), [(ToEngine, FRONT_TO_ENGINE), (ToFront, ENGINE_TO_FRONT)]
)
@pytest.mark.parametrize("piece", [1, 3, 7, 1 << 20])
def test_messages_survive_any_splitting(direction, messages, piece):
    stream = b"".join(encode(message) for message in messages)
    reader = FrameReader(direction)

    received = [
        message
        for start in range(0, len(stream), piece)
        for message in reader.feed(stream[start : start + piece])
    ]

    assert received == messages


@pytest.mark.parametrize(
    "garbage",
    [
        (MAX_FRAME_BYTES + 1).to_bytes(4, "little"),
        (3).to_bytes(4, "little") + b"\xc1\xc1\xc1",
        encode(Cancel(1)),  # of the other direction
    ],
)
def test_garbage_is_refused(garbage: bytes):
    with pytest.raises(FrameError):
        list(FrameReader(ToFront).feed(garbage))
