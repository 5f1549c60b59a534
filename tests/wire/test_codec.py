"""Frames survive any splitting of the stream, and garbage is refused."""

import pytest

from cadenza.wire.codec import MAX_FRAME_BYTES, FrameError, FrameReader, encode
from cadenza.wire.messages import (
    Cancel,
    Counters,
    Credit,
    Decision,
    DescribePolicies,
    EngineConfig,
    Failed,
    Finish,
    HookUse,
    PoliciesAnswer,
    PoliciesState,
    PolicyConfig,
    Progress,
    Ready,
    ReleasePolicy,
    ResetPrefixCache,
    Resubmit,
    RowLogprobs,
    Sampling,
    SetDeadline,
    Shutdown,
    Stall,
    Start,
    Step,
    Submit,
    ToEngine,
    ToFront,
    UseProfile,
    UseShadow,
)
from cadenza.wire.policies import Comparison, HookFaults, ProfileState, ShadowState

FRONT_TO_ENGINE = [
    Stall(1, is_stalled=True),
    Resubmit((Submit(request=2, choice=1, prompt=b"\1\0\0\0", emitted=b"\2\0\0\0", max_tokens=5),)),
    Start(
        EngineConfig(
            model="/m.gguf",
            policies=PolicyConfig(
                chosen={"order_admissions": ("fcfs",)},
                options={"fcfs": {"a": "1", "b": 1, "c": 1.5, "d": True, "e": ["x"]}},
                plugins_dir="/plugins",
                plugins=(),
                trace=True,
                watermark=0.5,
            ),
        )
    ),
    Submit(
        request=1 << 40,
        choice=3,
        prompt=b"\1\0\0\0",
        max_tokens=5,
        sampling=Sampling(temperature=0.5, seed=(1 << 64) - 1, logprobs=0),
        stop_token_ids=(7, 8),
        tenant="t",
    ),
    Submit(
        request=1,
        n=3,
        prompt=b"\1\0\0\0",
        max_tokens=5,
        sampling=Sampling(
            presence_penalty=-0.5,
            frequency_penalty=1.5,
            repetition_penalty=1.25,
            logprobs=2,
            prompt_logprobs=0,
            bias_ids=b"\1\0\0\0",
            biases=b"\0\0\0\0",
            allowed_ids=b"\2\0\0\0",
            bad_words=((1,), (2, 3)),
            min_tokens=4,
            ending_ids=(5, 6),
        ),
        credit=6,
        deadline_s=12.5,
        may_swap=False,
        may_recompute=False,
    ),
    Cancel(1),
    Finish(2, tokens_kept=9),
    Credit(1, tokens=16),
    SetDeadline(1, deadline_s=99.25),
    SetDeadline(1, deadline_s=None),
    ResetPrefixCache(),
    UseProfile(1, PolicyConfig(chosen={"guard_starvation": ("max-wait", "bounded-overtake")})),
    UseShadow(1 << 40, PolicyConfig(options={"fcfs": {"a": [1, "b"]}})),
    UseShadow(3, None),
    ReleasePolicy(4, policy="fair-share"),
    DescribePolicies(5),
    Shutdown(),
]
LIVE = ProfileState(
    decisions={"order_admissions": ("fcfs",), "on_finished": ("a", "b")},
    options={"fcfs": {"a": 1.5, "b": True}},
    faults=(HookFaults("fcfs", "order_admissions", 3, "ValueError('no')"),),
    quarantined=("fcfs",),
)
ENGINE_TO_FRONT = [
    Progress("weights", 3, 10),
    Ready(
        max_model_len=1,
        vocab_size=2,
        eos_token_ids=(3,),
        num_blocks=4,
        num_host_blocks=0,
        block_size=5,
        max_num_seqs=6,
        max_num_batched_tokens=7,
        device="cpu",
        dtype="float32",
        load_s=0.5,
    ),
    Step(step_id=1, requests=b"12345678", logprobs=(RowLogprobs(0, -0.5, b"a", b"b"),)),
    Step(
        step_id=2,
        decisions=(
            Decision("parked", 1 << 40, 2, 7.5),
            Decision(
                "preempted", 3, 2, 7.5, {"cause": "memory", "swapped": True, "swap_s": 0.5, "by": 4}
            ),
        ),
        counters=Counters(parked=1, swapped=2, free_host_blocks=3, decisions_lost=4),
        hook_uses=(HookUse("fcfs", "order_admissions", 5, 0.25),),
    ),
    PoliciesAnswer(1 << 40),
    PoliciesAnswer(2, error="policy 'x' cannot be used: no"),
    PoliciesState(3, LIVE),
    PoliciesState(
        4,
        LIVE,
        ShadowState(
            LIVE,
            (
                Comparison(
                    hook="order_admissions",
                    asked=9,
                    unanswered=1,
                    differed=4,
                    first_differed=2,
                    mean=0.25,
                    figure="mean change of place",
                ),
            ),
        ),
    ),
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


def test_types_of_facts_survive():
    """True is not 1, and a whole float stays one."""
    facts = {"starving": True, "rank": 1, "wait_s": 2.0, "message": "3"}
    frame = encode(Step(step_id=1, decisions=(Decision("admitted", 1, 1, 1.0, facts),)))

    (step,) = FrameReader(ToFront).feed(frame)

    received = step.decisions[0].facts
    assert {name: type(value) for name, value in received.items()} == {
        name: type(value) for name, value in facts.items()
    }
