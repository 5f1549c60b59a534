"""The real model: equal to transformers, and bitwise equal to itself under every disturbance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from cadenza.policies.profile import Profile
from tests.e2e.conftest import DemoModel, varied_prompts

NUM_TOKENS = 64
NUM_CHECKED = 17  # of the runs in chunks and alone: each request goes over the edge of a block
NUM_SQUEEZED = 32  # of the run in a small pool: several requests lose their place
LONGEST_SQUEEZED = 160  # tokens of a prompt there
CLOSE_LOGITS = 1e-4  # the reference's own best two are a tie within rounding

OVER_COMMIT = Profile({"reserve_blocks": "none"})


@dataclass
class Run:
    """Every request's tokens, and the digest of the logits of each."""

    tokens: dict[int, list[int]]
    digests: dict[int, list[bytes]]
    preempted: list[int]

    def begins_with(self, other: Run) -> bool:
        """Whether every request of `other` is here, and has there the beginning and its logits."""
        return self.tokens.keys() >= other.tokens.keys() and all(
            self.tokens[request][: len(tokens)] == tokens
            and self.digests[request][: len(tokens)] == other.digests[request]
            for request, tokens in other.tokens.items()
        )


PROMPTS = dict(enumerate(varied_prompts(20, 600)))


def run_all(
    demo: DemoModel,
    num_tokens: int,
    profile: Profile | None = None,
    prompts: dict[int, list[int]] = PROMPTS,
    **limits: object,
) -> Run:
    """Every prompt, all of them arriving at once."""
    driver, recorder = demo.drive(profile, **limits)
    for request, prompt in prompts.items():
        driver.add(request, prompt, max_tokens=num_tokens)
    driver.run()
    assert {request: len(each) for request, each in driver.tokens.items()} == dict.fromkeys(
        prompts, num_tokens
    )
    return Run(driver.tokens, recorder.digests, driver.preempted)


@pytest.fixture(scope="module")
def sixteen_at_once(demo_fp32: DemoModel, one_thread: None) -> Run:
    """Sixteen seats, whole prompts, and a pool that holds everybody."""
    run = run_all(demo_fp32, NUM_TOKENS, max_num_seqs=16)
    assert not run.preempted
    return run


@pytest.mark.timeout(240)  # the first also makes the run that all others compare with
@pytest.mark.parametrize("request_id", [0, 5, 12, 19])
def test_alone_and_among_sixteen_are_bitwise_the_same(
    demo_fp32: DemoModel, sixteen_at_once: Run, request_id: int
):
    driver, recorder = demo_fp32.drive(enable_prefix_caching=False)
    driver.add(request_id, PROMPTS[request_id], max_tokens=NUM_CHECKED)

    driver.run()

    tokens = driver.tokens[request_id]
    assert len(tokens) == NUM_CHECKED
    assert tokens == sixteen_at_once.tokens[request_id][:NUM_CHECKED]
    assert recorder.digests[request_id] == sixteen_at_once.digests[request_id][:NUM_CHECKED]


@pytest.mark.timeout(240)  # with transformers' model to load
def test_greedy_tokens_equal_those_of_transformers(
    sixteen_at_once: Run, reference: torch.nn.Module
):
    """Teacher-forced: given our tokens so far, the reference would choose the same next one.

    By induction that is equality of the greedy sequences. A difference is allowed only where the
    reference's best two logits are closer than CLOSE_LOGITS, and is reported.
    """
    ties = []
    for request, prompt in PROMPTS.items():
        ours = sixteen_at_once.tokens[request]
        assert len(ours) == NUM_TOKENS
        with torch.inference_mode():
            given = torch.tensor([prompt + ours[:-1]])
            logits = reference(given, logits_to_keep=NUM_TOKENS).logits[0]
        best = logits.topk(2).values
        for index in np.flatnonzero(logits.argmax(-1).numpy() != np.array(ours)):
            margin = float(best[index, 0] - best[index, 1])
            assert margin < CLOSE_LOGITS, f"request {request}, token {index}, margin {margin}"
            ties.append((request, int(index), margin))
    print("divergences within rounding:", ties)  # noqa: T201
    assert len(ties) < len(PROMPTS), "ties this frequent are no ties"


def test_chunks_of_32_are_bitwise_one_prefill(demo_fp32: DemoModel, sixteen_at_once: Run):
    run = run_all(demo_fp32, NUM_CHECKED, max_num_seqs=16, max_num_batched_tokens=32)

    assert not run.preempted
    assert sixteen_at_once.begins_with(run)


def test_preempted_requests_are_bitwise_undisturbed(demo_fp32: DemoModel, sixteen_at_once: Run):
    """A pool of 20 blocks, where the longest request alone needs 12."""
    prompts = {each: ids for each, ids in PROMPTS.items() if len(ids) <= LONGEST_SQUEEZED}
    small = {"num_blocks": 20, "max_model_len": 20 * 16, "watermark": 0.0}
    run = run_all(demo_fp32, NUM_SQUEEZED, OVER_COMMIT, prompts, max_num_seqs=16, **small)

    assert len(set(run.preempted)) >= 8, "too few requests were preempted to prove anything"
    assert sixteen_at_once.begins_with(run)


def test_int8_is_bitwise_the_same_in_chunks_alone_and_preempted(
    demo_int8: DemoModel, one_thread: None
):
    prompts = {each: ids for each, ids in PROMPTS.items() if len(ids) <= LONGEST_SQUEEZED}
    small = {"num_blocks": 20, "max_model_len": 20 * 16, "watermark": 0.0}
    whole = run_all(demo_int8, NUM_SQUEEZED, prompts=prompts, max_num_seqs=16)
    assert not whole.preempted

    alone = run_all(demo_int8, NUM_CHECKED, prompts={5: PROMPTS[5]}, max_num_seqs=1)
    in_chunks = run_all(
        demo_int8, NUM_CHECKED, prompts=prompts, max_num_seqs=4, max_num_batched_tokens=20
    )
    squeezed = {"profile": OVER_COMMIT, "prompts": prompts, "max_num_seqs": 16, **small}
    recomputed = run_all(demo_int8, NUM_SQUEEZED, **squeezed)

    assert all(whole.begins_with(run) for run in (in_chunks, recomputed))
    assert whole.tokens[5][:NUM_CHECKED] == alone.tokens[5]
    assert whole.digests[5][:NUM_CHECKED] == alone.digests[5]
    assert len(set(recomputed.preempted)) >= 8, "too few were preempted to prove anything"
