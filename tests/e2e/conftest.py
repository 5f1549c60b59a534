"""The demo model, in this process, and as a server of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from cadenza.checkpoints.locate import locate
from cadenza.engine.runner import ModelRunner
from cadenza.engine.startup import RunnerFacts, build_runner
from cadenza.policies.profile import Profile
from cadenza.scheduler.plan import StepOutcome, StepPlan
from cadenza.testing import Driver
from cadenza.testing.fake_runner import SteppedRunner
from cadenza.wire.messages import EngineConfig, Sampling
from tests.e2e.servers import Served, serving

BLOCK_SIZE = 16
GREEDY = Sampling(temperature=0.0)


class Recorder(SteppedRunner):
    """Runs plans on a model and keeps digests of the logits that each choice drew from."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._draw = runner.sampler.draw
        self.digests: dict[int, list[bytes]] = {}  # by request

    def execute(self, plan: StepPlan) -> StepOutcome:
        def draw(logits: torch.Tensor, *args: Any) -> torch.Tensor:
            self._record(plan, logits)
            return self._draw(logits, *args)

        self._runner.sampler.draw = draw  # type: ignore[method-assign]
        try:
            return self._runner.execute(plan)
        finally:
            self._runner.sampler.draw = self._draw  # type: ignore[method-assign]

    def _record(self, plan: StepPlan, logits: torch.Tensor) -> None:
        for request, row in zip(plan.sample_requests.tolist(), logits, strict=True):
            digest = sha256(row.cpu().numpy().tobytes()).digest()
            self.digests.setdefault(request, []).append(digest)


@dataclass
class DemoModel:
    """The demo model's runner, its limits, and the settings it finds for each request.

    Who is not in `settings` is greedy.
    """

    runner: ModelRunner
    facts: RunnerFacts
    settings: dict[int, tuple[Sampling, int]] = field(default_factory=dict)

    def drive(self, profile: Profile | None = None, **limits: object) -> tuple[Driver, Recorder]:
        """A driver over this model. Its pool may be smaller than the cache."""
        recorder = Recorder(self.runner)
        roomy = {
            "num_blocks": self.facts.num_blocks,
            "block_size": self.facts.block_size,
            "max_model_len": 1024,
            "max_num_seqs": 64,
            "max_num_batched_tokens": 1024,
            "eos_token_ids": frozenset(),
        }
        return Driver(profile, recorder, **{**roomy, **limits}), recorder


def load_demo(dtype: str, block_size: int = BLOCK_SIZE, quantization: str = "none") -> DemoModel:
    settings: dict[int, tuple[Sampling, int]] = {}
    config = EngineConfig(
        model=str(locate("demo").path),
        dtype=dtype,
        quantization=quantization,
        block_size=block_size,
        num_blocks=1024,
        max_num_seqs=64,
        max_num_batched_tokens=1024,
    )
    runner, facts = build_runner(
        config, lambda request: settings.get(request, (GREEDY, 0)), lambda *_: None
    )
    return DemoModel(runner, facts, settings)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tokens do not depend on it, and threads that share a core wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def demo_fp32() -> DemoModel:
    return load_demo("float32")


@pytest.fixture(scope="session")
def demo_auto() -> DemoModel:
    """In the type that this machine multiplies fast; emulated, a step takes seconds."""
    return load_demo("auto")


@pytest.fixture(scope="session")
def demo_int8() -> DemoModel:
    """In bfloat16 with int8 products."""
    return load_demo("bfloat16", quantization="int8")


@pytest.fixture(scope="session")
def reference() -> torch.nn.Module:
    """transformers' own model from the same file, dequantised to fp32."""
    path = locate("demo").path
    with pytest.MonkeyPatch.context() as patch:
        # It reads the file, vocabulary and all, twice, and lists all names again for each module
        for name in ("GGUFReader", "get_tensor_name_map"):
            patch.setattr(gguf, name, cache(getattr(gguf, name)))
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        )
    return model.eval()


def varied_prompts(num: int, longest: int) -> list[list[int]]:
    """Token ids of different lengths, from 1 to `longest`."""
    chance = np.random.default_rng(7)
    lengths = np.unique(np.geomspace(1, longest, num).round().astype(int))
    lengths = np.concatenate((lengths, chance.integers(1, longest // 4, num - len(lengths))))
    return [chance.integers(100, 40_000, length).tolist() for length in lengths]


Serve = Callable[..., Served]


@pytest.fixture(scope="session")
def serve() -> Iterator[Serve]:
    """Starts servers of the demo model on free ports, and stops what is still running."""
    with ExitStack() as running:
        yield lambda *flags: running.enter_context(serving(*flags))


@pytest.fixture(scope="session")
def server(serve: Serve) -> Served:
    """One server for all tests that leave it as they found it.

    In bfloat16 two first words are a tie for some questions, and machines break it differently.
    """
    flags = ("--max-num-seqs", "16", "--num-blocks", "512", "--max-model-len", "2048")
    return serve(*flags, "--dtype", "float32", "--threads", "1")
