"""Our models against transformers; the demo model's comparison stands in tests/e2e."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cadenza.engine.models.config import RopeScaling
from cadenza.engine.models.llama import scaled_frequencies
from cadenza.engine.runner import ModelRunner, build_runner
from cadenza.wire.messages import EngineConfig, Sampling
from tests.engine.conftest import Demo, Row, make_plan, random_tokens, save_tiny


def step_logits(runner: ModelRunner, tokens: list[int]) -> torch.Tensor:
    """Logits after each of `tokens`, [tokens, vocab], by prefilling half and decoding the rest."""
    blocks = list(range(-(-len(tokens) // 16)))
    half = len(tokens) // 2
    found = []
    # every prefix of the first half as a row of its own, in blocks of its own
    for end in range(1, half + 1):
        rows = [Row(tokens[:end], end, [100 + block for block in blocks])]
        found.append(runner.logits(make_plan(*rows))[0])
    runner.logits(make_plan(Row(tokens[:half], half, blocks, samples=True)))
    found.extend(
        runner.logits(make_plan(Row(tokens[:end], 1, blocks)))[0]
        for end in range(half + 1, len(tokens) + 1)
    )
    return torch.stack(found)


@torch.inference_mode()
def test_bfloat16_is_near_float32(demo_fp32: Demo, demo_bf16: Demo) -> None:
    tokens = random_tokens(40, seed=6)
    plan = make_plan(Row(tokens, 40, [0, 1, 2]))

    exact, rounded = demo_fp32.runner.logits(plan)[0], demo_bf16.runner.logits(plan)[0]

    assert demo_bf16.facts.dtype == "bfloat16"
    assert 0 < float((exact - rounded).abs().max()) < 0.5
    assert torch.cosine_similarity(exact, rounded, dim=0) > 0.999


VARIANTS = {
    "llama3 rotary scaling, own head": {},
    "tied head, linear scaling": {
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
    },
    "one KV head a query head": {"num_key_value_heads": 6, "rope_parameters": None},
    "one KV head for all": {"num_key_value_heads": 1, "rope_parameters": None},
}


@torch.inference_mode()
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_a_folder_has_transformers_logits(changes: dict[str, object], tmp_path: Path) -> None:
    expected_model = save_tiny(tmp_path, **changes)
    config = EngineConfig(
        model=str(tmp_path), dtype="float32", num_blocks=128, max_num_batched_tokens=64
    )
    runner, facts = build_runner(config, lambda _: (Sampling(), 0), lambda *_: None)
    tokens = random_tokens(60, vocab_size=101)

    found = step_logits(runner, tokens)

    expected = expected_model(torch.tensor([tokens])).logits[0]
    assert float(expected.std()) > 0.5  # the comparison means something
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert facts.eos_token_ids == (3, 7)
    assert facts.max_model_len == 256


def test_llama3_scaling_keeps_fast_and_divides_slow_frequencies() -> None:
    scaling = RopeScaling(kind="llama3", factor=8.0, original_max_positions=8192)

    scaled = scaled_frequencies(torch.tensor([1.0, 1e-5]), scaling)

    assert scaled.tolist() == pytest.approx([1.0, 1e-5 / 8])
