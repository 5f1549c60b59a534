"""One forward pass for many rows: the same bits however a row was cut, placed and accompanied."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from cadenza.checkpoints import locate
from cadenza.engine.calibration import token_seconds, tokens_within
from cadenza.engine.startup import build_runner
from cadenza.scheduler.plan import Seated
from cadenza.wire.messages import EngineConfig, Sampling
from tests.engine.conftest import Demo, Row, load_demo, make_copies, make_plan, random_tokens

PROMPT = random_tokens(70)
BEGINNING = 20  # tokens of it, more than a block
NUM_DECODED = 3


def follow(
    demo: Demo, prompt: list[int], chunk: int, blocks: list[int], company: list[Row] | None = None
) -> torch.Tensor:
    """Prefill `prompt` in chunks, then decode greedily; the logits of every sampled token."""
    found, sequence = [], list(prompt)
    for start in range(0, len(prompt), chunk):
        end = min(start + chunk, len(prompt))
        last = end == len(prompt)
        row = Row(sequence[:end], end - start, blocks, samples=int(last))
        logits = demo.runner.logits(make_plan(*(company or []), row))
        if last:
            found.append(logits[-1])
    for _ in range(NUM_DECODED):
        sequence.append(int(found[-1].argmax()))
        row = Row(sequence, 1, blocks)
        found.append(demo.runner.logits(make_plan(*(company or []), row))[-1])
    return torch.stack(found)


@pytest.fixture(scope="module")
def whole() -> dict[int, torch.Tensor]:
    """The logits of the prompt in one chunk, alone, by demo."""
    return {}


def expected(demo: Demo, whole: dict[int, torch.Tensor]) -> torch.Tensor:
    if id(demo) not in whole:
        whole[id(demo)] = follow(demo, PROMPT, len(PROMPT), [0, 1, 2, 3, 4])
    return whole[id(demo)]


@pytest.mark.parametrize("threads", [1, 2])
def test_chunks_of_one_token_change_no_bit(
    threads: int, demo: Demo, set_threads: Callable[[int], None]
) -> None:
    """As many passes as tokens, so of a shorter prompt."""
    prompt = PROMPT[:BEGINNING]
    reference = follow(demo, prompt, BEGINNING, [0, 1])
    set_threads(threads)

    assert torch.equal(follow(demo, prompt, 1, [90, 7]), reference)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("chunk", [7, 32, 512])
def test_chunks_blocks_and_threads_change_no_bit(
    chunk: int,
    threads: int,
    demo: Demo,
    whole: dict[int, torch.Tensor],
    set_threads: Callable[[int], None],
) -> None:
    reference = expected(demo, whole)
    set_threads(threads)

    found = follow(demo, PROMPT, chunk, [90, 7, 55, 8, 200])

    assert torch.equal(found, reference)


def test_company_changes_no_bit(demo: Demo, whole: dict[int, torch.Tensor]) -> None:
    """Beside a long decode, a prefill and a chunk that is not sampled, all over the pool."""
    reference = expected(demo, whole)
    long = random_tokens(300, seed=1)
    demo.runner.logits(make_plan(Row(long[:299], 299, list(range(100, 119)))))
    company = [
        Row(long, 1, list(range(100, 119))),
        Row(random_tokens(37, seed=2), 37, [130, 131, 132]),
        Row(random_tokens(5, seed=3), 5, [140], samples=0),
    ]

    assert torch.equal(follow(demo, PROMPT, 33, [60, 61, 62, 63, 64], company), reference)


def test_a_large_batch_of_decodes_changes_no_bit(
    demo: Demo, whole: dict[int, torch.Tensor]
) -> None:
    reference = expected(demo, whole)
    sequence = [*PROMPT, int(reference[0].argmax())]
    prefills, rows = [], []
    for number in range(21):
        blocks = list(range(5 * number, 5 * number + 5))
        length = 70 if number == 13 else 8 + number
        tokens = PROMPT if number == 13 else random_tokens(length, seed=number)
        prefills.append(Row(tokens, length, blocks, samples=0))
        rows.append(Row(sequence if number == 13 else [*tokens, 5], 1, blocks))
    demo.runner.logits(make_plan(*prefills))

    assert torch.equal(demo.runner.logits(make_plan(*rows))[13], reference[1])


def test_an_outcome_has_the_order_of_the_samples(demo_fp32: Demo) -> None:
    demo_fp32.settings[7] = (Sampling(temperature=0.0, logprobs=2), 0)
    rows = [
        Row(PROMPT[:9], 9, [1], samples=0),
        Row(PROMPT[:20], 20, [2, 3], request=7),
        Row(PROMPT[:12], 12, [4]),
    ]

    outcome = demo_fp32.runner.execute(make_plan(*rows))

    alone = [demo_fp32.runner.logits(make_plan(row))[0] for row in rows[1:]]
    assert outcome.step_id == 1
    assert outcome.tokens.tolist() == [int(logits.argmax()) for logits in alone]
    assert outcome.failed.tolist() == [False, False]
    assert list(outcome.logprobs) == [0]
    assert outcome.logprobs[0].top_ids[0] == outcome.tokens[0]


def test_each_choice_of_a_prompt_draws_its_own_first_token(demo_fp32: Demo) -> None:
    """Three samples of one row, as three requests with the same prompt would have drawn them."""
    hot = Sampling(temperature=3.0, seed=8)
    for choice in range(3):
        demo_fp32.settings[30 + choice] = (hot, choice)
    fork = Row(PROMPT[:20], 20, [2, 3], samples=3, request=30)
    company = Row(PROMPT[:12], 12, [4])

    together = demo_fp32.runner.execute(make_plan(company, fork, company))

    alone = [
        int(
            demo_fp32.runner.execute(
                make_plan(Row(PROMPT[:20], 20, [6, 7], request=request))
            ).tokens[0]
        )
        for request in (30, 31, 32)
    ]
    assert together.tokens.tolist()[1:4] == alone
    assert len(set(alone)) == 3
    assert together.tokens[0] == together.tokens[4]


def test_a_plan_may_sample_nothing(demo_fp32: Demo) -> None:
    outcome = demo_fp32.runner.execute(make_plan(Row(PROMPT[:9], 9, [1], samples=0)))

    assert len(outcome.tokens) == len(outcome.failed) == 0
    assert outcome.times.forward_s > 0


def test_settings_are_asked_for_when_a_seat_is_taken_and_kept(demo_fp32: Demo) -> None:
    hot = Sampling(temperature=5.0, seed=3)
    demo_fp32.settings[1] = (hot, 0)
    row = Row(PROMPT[:20], 20, [2, 3], request=1)
    first = demo_fp32.runner.execute(make_plan(row)).tokens[0]
    demo_fp32.settings[1] = (Sampling(temperature=5.0, seed=4), 0)

    again = demo_fp32.runner.execute(make_plan(row, seated=False)).tokens[0]
    other = demo_fp32.runner.execute(make_plan(row)).tokens[0]

    assert first == again != other


def test_a_sampled_row_continues_alike_after_recomputing_it(demo_fp32: Demo) -> None:
    """What preemption does: prompt and emitted tokens are prefilled again, elsewhere."""
    demo_fp32.settings[5] = (Sampling(temperature=1.0, top_p=0.95, seed=42), 1)
    sequence, blocks = PROMPT[:20], [9, 8]
    tokens = []
    for step in range(6):
        row = Row(sequence + tokens, 1 if step else 20, blocks, request=5)
        tokens.append(int(demo_fp32.runner.execute(make_plan(row)).tokens[0]))

    recomputed = Row(sequence + tokens[:5], 25, [77, 3], request=5)

    assert demo_fp32.runner.execute(make_plan(recomputed)).tokens[0] == tokens[5]


def test_a_row_with_nan_in_its_cache_fails_alone(demo_fp32: Demo) -> None:
    good = Row(PROMPT[:20], 1, [20, 21])
    bad = Row(PROMPT[:20], 1, [30, 31])
    for row in (good, bad):
        demo_fp32.runner.logits(make_plan(Row(row.sequence, 20, row.blocks)))
    expected_token = demo_fp32.runner.execute(make_plan(good)).tokens[0]
    blocks = demo_fp32.runner.cache.blocks
    blocks[30] = float("nan")

    outcome = demo_fp32.runner.execute(make_plan(bad, good))

    blocks[30] = 0.0
    assert outcome.tokens.tolist() == [-1, expected_token]
    assert outcome.failed.tolist() == [True, False]


def test_stale_nan_behind_a_rows_end_is_never_read(demo_fp32: Demo) -> None:
    row = Row(PROMPT[:20], 20, [40, 41])
    reference = demo_fp32.runner.logits(make_plan(row))
    demo_fp32.runner.cache.blocks[[0, 40, 41]] = float("nan")

    found = demo_fp32.runner.logits(make_plan(row))

    demo_fp32.runner.cache.blocks[[0, 40, 41]] = 0.0
    assert torch.equal(found, reference)


def test_a_plan_without_rows_copies_and_seats_all_the_same(demo_fp32: Demo) -> None:
    demo_fp32.settings[12] = (Sampling(temperature=5.0, seed=3), 0)
    blocks = demo_fp32.runner.cache.blocks
    blocks[50].fill_(1.5)
    blocks[51].zero_()
    nobody = make_plan(copies=make_copies(on_write=[(50, 51)]))
    seated = Seated(0, 12, np.array([5], dtype=np.int32), 1)

    outcome = demo_fp32.runner.execute(dataclasses.replace(nobody, step_id=9, seated=(seated,)))

    assert (outcome.step_id, len(outcome.tokens), len(outcome.failed)) == (9, 0, 0)
    assert outcome.times.forward_s == 0
    assert torch.equal(blocks[51], blocks[50])
    row = Row(PROMPT[:20], 20, [2, 3], request=12)
    drawn = demo_fp32.runner.execute(make_plan(row, seated=False)).tokens[0]
    assert drawn == demo_fp32.runner.execute(make_plan(row)).tokens[0]
    blocks[50:52].zero_()


def test_blocks_move_before_the_pass_that_reads_and_overwrites_them(demo_fp32: Demo) -> None:
    """A row is swapped out while another takes its blocks, and comes back elsewhere: same bits."""
    sequence = PROMPT[:40]
    demo_fp32.runner.logits(make_plan(Row(sequence[:39], 39, [60, 61, 62])))
    expected_logits = demo_fp32.runner.logits(make_plan(Row(sequence, 1, [60, 61, 62])))
    demo_fp32.runner.execute(
        make_plan(
            Row(random_tokens(40, seed=9), 40, [60, 61, 62]),
            copies=make_copies(swap_out=[(60, 5), (61, 0), (62, 3)]),
        )
    )
    # 61 is read by a copy on write, and takes a swapped block in the same step
    plan = make_plan(
        Row(sequence, 1, [61, 70, 60]),
        copies=make_copies(on_write=[(61, 80)], swap_in=[(5, 61), (0, 70), (3, 60)]),
    )
    others = demo_fp32.runner.cache.blocks[61].clone()

    outcome = demo_fp32.runner.execute(plan)

    assert torch.equal(
        demo_fp32.runner.logits(make_plan(Row(sequence, 1, [61, 70, 60]))), expected_logits
    )
    assert outcome.tokens[0] == expected_logits[0].argmax()
    assert torch.equal(demo_fp32.runner.cache.blocks[80], others)
    assert outcome.times.swap_in_s > 0 == outcome.times.swap_out_s


def test_penalties_are_the_same_after_a_preemption(demo_fp32: Demo) -> None:
    demo_fp32.settings[5] = (
        Sampling(temperature=0.7, seed=4, repetition_penalty=1.3, frequency_penalty=0.5),
        1,
    )
    sequence, blocks = PROMPT[:20], [9, 8]
    tokens: list[int] = []
    for step in range(8):
        row = Row(sequence + tokens, 1 if step else 20, blocks, request=5)
        plan = make_plan(row, seated=step == 0)
        tokens.append(int(demo_fp32.runner.execute(plan).tokens[0]))

    recomputed = Row(sequence + tokens[:7], 27, [77, 3], request=5, prompt_tokens=20)

    assert demo_fp32.runner.execute(make_plan(recomputed)).tokens[0] == tokens[7]


def test_facts_are_the_figures_in_force() -> None:
    facts = load_demo(
        "float32", num_blocks=None, kv_cache_bytes=1 << 22, swap_bytes=1 << 23, block_size=32
    ).facts

    # 30 layers, keys and values of 3 heads of 64 in fp32: 46080 bytes a token
    assert facts.num_blocks == (1 << 22) // (32 * 46080)
    assert facts.num_host_blocks == (1 << 23) // (32 * 46080)
    assert 0 < facts.copy_block_s < 1
    assert facts.token_s == 0  # unknown: the budget is given
    assert facts.max_model_len == facts.num_blocks * 32
    assert (facts.vocab_size, facts.eos_token_ids) == (49152, (2,))
    assert (facts.device, facts.dtype, facts.quantization) == ("cpu", "float32", "none")
    assert facts.max_num_batched_tokens == 512


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"block_size": 24}, "block_size is 24, not a power of two."),
        ({"block_size": 0}, "block_size is 0, not a power of two."),
        ({"num_blocks": 0}, "num_blocks is 0, not at least 1."),
        ({"max_num_seqs": -1}, "max_num_seqs is -1, not at least 1."),
        ({"max_model_len": 9000}, "max_model_len is 9000, but the model was made for 8192 tokens."),
        ({"num_blocks": None, "kv_cache_bytes": 10}, "kv_cache_bytes is 10, but one block"),
        ({"swap_bytes": -1}, "swap_bytes is -1, negative."),
        ({"step_time_s": 0.0}, "step_time_s is 0.0, not positive."),
        ({"dtype": "int8"}, "dtype is 'int8', not auto, float32 or bfloat16."),
        ({"quantization": "int4"}, "quantization is 'int4', not none, int8 or fp8."),
        ({"device": "tpu"}, "device is 'tpu', not auto, cpu or cuda."),
    ],
)
def test_unusable_settings_are_named(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match="^" + sentence.replace(".", r"\.")):
        load_demo(**{"dtype": "float32", **changes})


def test_cuda_is_refused_where_there_is_none() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    config = EngineConfig(model="unused", device="cuda")

    with pytest.raises(ValueError, match="has no CUDA"):
        build_runner(config, lambda _: (Sampling(), 0), lambda *_: None)


@pytest.mark.parametrize(("tokens", "measured"), [(64, 64), (2048, 160)])
def test_calibration_computes_as_many_tokens_as_it_shall_and_there_is_room_for(
    tokens: int, measured: int
) -> None:
    computed: list[int] = []

    token_s = token_seconds(
        lambda plan: computed.append(plan.num_tokens),
        num_blocks=10,
        block_size=16,
        longest=1000,
        tokens=tokens,
    )

    assert computed == [measured] * 3
    assert token_s > 0


def test_progress_is_told_in_order() -> None:
    seen: list[tuple[str, int, int]] = []
    config = EngineConfig(
        model=str(locate("demo").path), dtype="float32", num_blocks=8, swap_bytes=0
    )

    _, facts = build_runner(config, lambda _: (Sampling(), 0), lambda *step: seen.append(step))

    assert list(dict.fromkeys(stage for stage, _, _ in seen)) == ["weights", "cache", "calibration"]
    assert [done for stage, done, _ in seen if stage == "weights"] == list(range(31))
    assert facts.max_model_len == 128
    assert facts.max_num_batched_tokens == tokens_within(config.step_time_s, facts.token_s)
    assert (facts.num_host_blocks, facts.copy_block_s) == (0, 0)
    assert np.isfinite(facts.load_s)
