"""What int8 products lose: perplexity on a fixed text, and how far greedy tokens agree.

The text is `passage.txt`, written for this. Perplexity is that of all its tokens after the first.
Greedy tokens are those after each of its pieces: "same next" is the share of positions where, given
what the first kind has generated so far, the other has the same most probable token; "same run" is
how many tokens the two have in common before they part, of those that were generated.

fp32 is the first kind, so that what bf16 loses, which everybody accepts, stands beside it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cadenza.checkpoints.locate import locate
from cadenza.engine.runner import ModelRunner
from cadenza.engine.startup import build_runner
from cadenza.scheduler.plan import PromptScores, StepOutcome, StepPlan
from cadenza.service.tokenizer import load_tokenizer
from cadenza.testing import Driver
from cadenza.testing.fake_runner import SteppedRunner
from cadenza.wire.messages import EngineConfig, Sampling

sys.path.append(str(Path(__file__).parent))
from machine import heading

KINDS: Mapping[str, Mapping[str, str]] = {
    "fp32": {"dtype": "float32"},
    "bf16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
}
PIECE, GENERATED = 64, 64  # tokens of a beginning, and after it
LIMITS = {"num_blocks": 512, "block_size": 16, "max_num_batched_tokens": 2048, "max_num_seqs": 32}
SCORED = Sampling(temperature=0.0, prompt_logprobs=1)


class Scoring(SteppedRunner):
    """A runner that keeps the scores of prompts."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.scores: list[PromptScores] = []

    def execute(self, plan: StepPlan) -> StepOutcome:
        outcome = self._runner.execute(plan)
        self.scores += outcome.prompt_scores
        return outcome


class Model:
    """The demo model in one of the kinds."""

    def __init__(self, model: str, kind: str) -> None:
        config = EngineConfig(model=model, **LIMITS, **KINDS[kind])
        self._runner, _ = build_runner(config, lambda _: (SCORED, 0), lambda *_: None)

    def generate(self, prompts: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
        """Return the greedy tokens after each."""
        return self._driven(prompts, max_tokens)[0]

    def score(self, prompts: Sequence[list[int]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return log-probabilities and most probable ids of each, of all tokens but the first."""
        scores = self._driven(prompts, 1)[1]
        parts = [[part for part in scores if part.request == row] for row in range(len(prompts))]
        return [
            (
                np.concatenate([part.logprobs for part in of_row]),
                np.concatenate([part.top_ids[:, 0] for part in of_row]),
            )
            for of_row in parts
        ]

    def _driven(
        self, prompts: Sequence[list[int]], max_tokens: int
    ) -> tuple[list[list[int]], list[PromptScores]]:
        scoring = Scoring(self._runner)
        limits: dict[str, Any] = {
            **LIMITS,
            "max_model_len": 4096,
            "eos_token_ids": frozenset(),
            "enable_prefix_caching": False,
        }
        driver = Driver(runner=scoring, **limits)
        for row, prompt in enumerate(prompts):
            driver.add(row, prompt, max_tokens=max_tokens)
        driver.run()
        return [driver.tokens[row] for row in range(len(prompts))], scoring.scores


def measure(path: Path) -> list[dict[str, Any]]:
    """Return the figures of each kind."""
    text = Path(__file__).with_name("passage.txt").read_text()
    ids = load_tokenizer(path).encode_text(text)
    beginnings = [ids[start : start + PIECE] for start in range(0, len(ids) - PIECE, PIECE)]
    results: list[dict[str, Any]] = []
    generated: list[list[int]] = []  # by the first kind
    for kind in KINDS:
        model = Model(str(path), kind)
        (logprobs, _), *_ = model.score([ids])
        own = model.generate(beginnings, GENERATED)
        generated = generated or own
        wholes = [[*prompt, *more] for prompt, more in zip(beginnings, generated, strict=True)]
        agreed = [
            best[PIECE - 1 :] == np.array(more)
            for (_, best), more in zip(model.score(wholes), generated, strict=True)
        ]
        in_common = [common(*pair) for pair in zip(own, generated, strict=True)]
        results.append(
            {
                "quantization": kind,
                "tokens": len(logprobs),
                "perplexity": round(math.exp(-float(logprobs.mean(dtype=np.float64))), 3),
                "runs": len(beginnings),
                "same_next": round(float(np.mean(agreed)), 4),
                "same_run": round(float(np.mean(in_common)), 1),
            }
        )
    return results


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many tokens two sequences begin with alike."""
    differ = [at for at, (a, b) in enumerate(zip(left, right, strict=True)) if a != b]
    return differ[0] if differ else len(left)


def main() -> None:
    print(heading())
    results = measure(locate("demo").path)
    tokens, runs = results[0]["tokens"], results[0]["runs"]
    print(f"The demo model: perplexity of {tokens} tokens, {runs} runs of {GENERATED}.\n")
    print(f"{'':6}{'perplexity':>12}{'of the first':>14}{'same next':>12}{'same run':>10}")
    for result in results:
        ratio = result["perplexity"] / results[0]["perplexity"]
        print(
            f"{result['quantization']:6}{result['perplexity']:12.3f}{ratio:14.4f}"
            f"{result['same_next']:12.1%}{result['same_run']:10.1f}"
        )
    print(f"\n{json.dumps({'quantization': results})}")


if __name__ == "__main__":
    main()
