"""Our models against transformers, in every kind of company; the demo model's is in tests/e2e."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cadenza.engine.runner import ModelRunner
from cadenza.policies.profile import Profile
from cadenza.scheduler.costs import CostModel
from cadenza.scheduler.plan import StepOutcome, StepPlan, StepTimes
from cadenza.testing import Driver
from cadenza.testing.fake_runner import SteppedRunner
from tests.e2e.conftest import Recorder
from tests.engine.conftest import Demo, Row, make_plan, random_tokens
from tests.engine.models.tiny import OTHERS, TINY, VOCABULARY, open_runner

CLOSE = 1e-4  # of logits whose standard deviation is about 1, in fp32
BLOCK = 4
NUM_BLOCKS = 120
NUM_TOKENS = 12  # that every request generates
SHARED = random_tokens(22, seed=5, vocab_size=VOCABULARY)
PROMPTS = {
    request: [*SHARED[:shared], *random_tokens(length, seed=request, vocab_size=VOCABULARY)]
    for request, (shared, length) in enumerate([(0, 1), (0, 40), (22, 3), (22, 11), (9, 20)])
}
OVER_COMMIT = Profile({"reserve_blocks": "none"})
NATIVE = {
    "Llama with llama3 scaling",
    "Llama, tied, with linear scaling",
    "Llama with dynamic scaling",
    "Llama with YaRN",
    "Qwen2",
    "Qwen2 with windows",
    "Qwen3",
    "Mistral with windows",
    "Mistral without",
}


def step_logits(runner: ModelRunner, tokens: list[int]) -> torch.Tensor:
    """Logits after each of `tokens`, [tokens, vocab], by prefilling half and decoding the rest."""
    blocks = list(range(-(-len(tokens) // BLOCK)))
    half = len(tokens) // 2
    # every prefix of the first half as a row of its own, in blocks of its own
    prefixes = [
        Row(tokens[:end], end, [60 + block for block in blocks]) for end in range(1, half + 1)
    ]
    found = [runner.logits(make_plan(row, block_size=BLOCK))[0] for row in prefixes]
    runner.logits(make_plan(Row(tokens[:half], half, blocks), block_size=BLOCK))
    found.extend(
        runner.logits(make_plan(Row(tokens[:end], 1, blocks), block_size=BLOCK))[0]
        for end in range(half + 1, len(tokens) + 1)
    )
    return torch.stack(found)


@dataclass
class Loaded:
    """transformers' model, and ours from the same folder."""

    name: str
    theirs: Any
    runner: ModelRunner
    layers: str
    whole: Run = field(init=False)  # everybody at once, undisturbed


class Timed(SteppedRunner):
    """A recorder of logits to which computing takes long and copying no time."""

    def __init__(self, runner: ModelRunner) -> None:
        self.recorder = Recorder(runner)
        self.swapped_in = 0

    def execute(self, plan: StepPlan) -> StepOutcome:
        self.swapped_in += len(plan.copies.swap_in)
        return replace(
            self.recorder.execute(plan), times=StepTimes(1.0 * plan.num_tokens, 1e-9, 1e-9)
        )


@dataclass
class Run:
    """What every request got, and how."""

    tokens: dict[int, list[int]]
    digests: dict[int, list[bytes]]  # of the logits of each
    preempted: list[int]
    cached: dict[int, int]
    swapped_in: int

    def is_like(self, other: Run, to_the_bit: bool) -> bool:
        """Whether each request here got the tokens, and the very logits, that it got there."""
        return all(
            tokens == other.tokens[request]
            and (self.digests[request] == other.digests[request] or not to_the_bit)
            for request, tokens in self.tokens.items()
        )


def run(
    runner: ModelRunner,
    requests: Iterable[int] = PROMPTS,
    profile: Profile | None = None,
    **limits: Any,
) -> Run:
    timed = Timed(runner)
    roomy = {
        "num_blocks": NUM_BLOCKS,
        "block_size": BLOCK,
        "max_model_len": 64,
        "max_num_batched_tokens": 200,
        "eos_token_ids": frozenset(),
    }
    costs = CostModel(token_s=1.0, copy_block_s=1e-9)
    driver = Driver(profile, timed, costs, **{**roomy, **limits})
    for request in requests:
        driver.add(request, PROMPTS[request], max_tokens=NUM_TOKENS)
    driver.run()
    return Run(
        driver.tokens, timed.recorder.digests, driver.preempted, driver.cached, timed.swapped_in
    )


@pytest.fixture(scope="module", params=[*TINY, *OTHERS])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp("tiny")
    theirs = (TINY | OTHERS)[request.param].save(folder)
    runner, facts = open_runner(folder, block_size=BLOCK, num_blocks=NUM_BLOCKS, swap_bytes=1 << 20)
    loaded = Loaded(request.param, theirs, runner, facts.layers)
    loaded.whole = run(runner)
    return loaded


@torch.inference_mode()
def test_logits_are_those_of_transformers(loaded: Loaded) -> None:
    tokens = random_tokens(60, vocab_size=VOCABULARY)

    found = step_logits(loaded.runner, tokens)

    expected = loaded.theirs(torch.tensor([tokens])).logits[0]
    assert float(expected.std()) > 0.5  # the comparison means something
    torch.testing.assert_close(found, expected, rtol=CLOSE, atol=CLOSE)
    ours = "native" if loaded.name in NATIVE else "plain"
    assert loaded.layers == ("transformers" if loaded.name in OTHERS else ours)


@torch.inference_mode()
def test_greedy_tokens_are_those_of_transformers(loaded: Loaded) -> None:
    """Teacher-forced: by induction that is equality of the sequences, but for ties."""
    for request, prompt in PROMPTS.items():
        ours = loaded.whole.tokens[request]
        assert len(ours) == NUM_TOKENS
        logits = loaded.theirs(torch.tensor([prompt + ours[:-1]])).logits[0, len(prompt) - 1 :]
        chosen = logits.gather(1, torch.tensor(ours).unsqueeze(1))[:, 0]
        assert float((logits.amax(1) - chosen).max()) < CLOSE


def test_company_chunks_and_preemptions_change_nothing(loaded: Loaded) -> None:
    check_that_nothing_is_changed(loaded)


def check_that_nothing_is_changed(loaded: Loaded) -> None:
    """Alone, in chunks, with a prefix found, recomputed, swapped: the logits of the whole run."""
    runner, whole = loaded.runner, loaded.whole
    assert not whole.preempted

    alone = [run(runner, [request], enable_prefix_caching=False) for request in (1, 3)]
    in_chunks = run(runner, max_num_batched_tokens=12)
    found_again = run(runner, max_num_seqs=1)
    small = {"num_blocks": 18, "max_num_seqs": 4}
    recomputed = run(runner, profile=OVER_COMMIT, **small)
    swapped = run(runner, profile=OVER_COMMIT, num_host_blocks=40, **small)

    runs = (*alone, in_chunks, found_again, recomputed, swapped)
    # activations of transformers differ between the ends and the middle of a thread's share
    to_the_bit = loaded.layers != "transformers"
    assert all(each.is_like(whole, to_the_bit) for each in runs)
    assert any(found_again.cached.values())
    assert recomputed.preempted
    assert swapped.swapped_in


@torch.inference_mode()
@pytest.mark.parametrize(("name", "layers"), [("Qwen2", "native"), ("Gemma 2", "plain")])
def test_int8_changes_logits_little_and_nothing_else_changes_them(
    name: str, layers: str, tmp_path: Path
) -> None:
    TINY[name].save(tmp_path)
    limits = {"block_size": BLOCK, "num_blocks": NUM_BLOCKS, "swap_bytes": 1 << 20}
    exact, _ = open_runner(tmp_path, **limits)
    runner, facts = open_runner(tmp_path, quantization="int8", **limits)
    tokens = random_tokens(60, vocab_size=VOCABULARY)
    loaded = Loaded(name, None, runner, facts.layers)
    loaded.whole = run(runner)

    found, expected = step_logits(runner, tokens), step_logits(exact, tokens)

    assert (facts.layers, facts.quantization) == (layers, "int8")
    assert 0.9 < float(torch.cosine_similarity(found, expected, dim=1).min()) < 1
    check_that_nothing_is_changed(loaded)


@torch.inference_mode()
def test_bfloat16_is_near_float32(demo_fp32: Demo, demo_bf16: Demo) -> None:
    tokens = random_tokens(40, seed=6)
    plan = make_plan(Row(tokens, 40, [0, 1, 2]))

    exact, rounded = demo_fp32.runner.logits(plan)[0], demo_bf16.runner.logits(plan)[0]

    assert demo_bf16.facts.dtype == "bfloat16"
    assert 0 < float((exact - rounded).abs().max()) < 0.5
    assert torch.cosine_similarity(exact, rounded, dim=0) > 0.999


@torch.inference_mode()
def test_int8_is_near_bfloat16(demo_bf16: Demo, demo_int8: Demo) -> None:
    tokens = random_tokens(40, seed=6)
    plan = make_plan(Row(tokens, 40, [0, 1, 2]))

    exact, rounded = demo_bf16.runner.logits(plan)[0], demo_int8.runner.logits(plan)[0]

    assert (demo_int8.facts.dtype, demo_int8.facts.quantization) == ("bfloat16", "int8")
    assert 0.99 < float(torch.cosine_similarity(exact, rounded, dim=0)) < 1
