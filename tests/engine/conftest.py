"""The demo model in two dtypes and in int8, a tiny model as a folder, and plans made by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from cadenza.checkpoints import locate
from cadenza.engine.runner import ModelRunner
from cadenza.engine.sampler import Sampled, Sampler
from cadenza.engine.startup import RunnerFacts, build_runner
from cadenza.scheduler.plan import Copies, Seated, StepPlan
from cadenza.wire.messages import EngineConfig, Sampling

Pairs = Iterable[tuple[int, int]]
GREEDY = Sampling(temperature=0.0)


@dataclass
class Demo:
    """A runner over the demo model, and the settings it finds for each request."""

    runner: ModelRunner
    facts: RunnerFacts
    settings: dict[int, tuple[Sampling, int]]


def load_demo(dtype: str, **changes: object) -> Demo:
    settings: dict[int, tuple[Sampling, int]] = {}
    config = EngineConfig(
        **{
            "model": str(locate("demo").path),
            "dtype": dtype,
            "num_blocks": 256,
            "max_num_batched_tokens": 512,
            **changes,
        }
    )
    runner, facts = build_runner(
        config, lambda request: settings.get(request, (GREEDY, 0)), lambda *_: None
    )
    return Demo(runner, facts, settings)


@pytest.fixture(scope="session")
def demo_fp32() -> Demo:
    return load_demo("float32")


@pytest.fixture(scope="session")
def demo_bf16() -> Demo:
    return load_demo("bfloat16")


@pytest.fixture(scope="session")
def demo_int8() -> Demo:
    return load_demo("bfloat16", quantization="int8")


@pytest.fixture(params=["float32", "bfloat16", "int8"])
def demo(request: pytest.FixtureRequest) -> Demo:
    """Each of them, one after the other."""
    name = {"float32": "demo_fp32", "bfloat16": "demo_bf16", "int8": "demo_int8"}[request.param]
    return request.getfixturevalue(name)


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Row:
    """One row of a plan: the new tokens are the last `num_new` of `sequence`."""

    sequence: list[int]
    num_new: int
    blocks: list[int]
    samples: int = 1  # choices that draw from this row
    request: int = 0  # of the first choice
    prompt_tokens: int | None = None  # None: all of the sequence

    @property
    def seated(self) -> list[tuple[int, np.ndarray, int]]:
        tokens = np.array(self.sequence, dtype=np.int32)
        prompt_tokens = len(tokens) if self.prompt_tokens is None else self.prompt_tokens
        requests = range(self.request, self.request + max(self.samples, 1))
        return [(request, tokens, prompt_tokens) for request in requests]


def make_copies(swap_out: Pairs = (), on_write: Pairs = (), swap_in: Pairs = ()) -> Copies:
    return Copies(
        *(
            np.array(list(pairs), dtype=np.int32).reshape(-1, 2)
            for pairs in (swap_out, on_write, swap_in)
        )
    )


def make_plan(
    *rows: Row, block_size: int = 16, seated: bool = True, copies: Copies | None = None
) -> StepPlan:
    """Lay rows out as the scheduler does; their choices take seats 0, 1, 2, ... in order."""
    num_new = np.array([row.num_new for row in rows], dtype=np.int32)
    num_context = np.array([len(row.sequence) - row.num_new for row in rows], dtype=np.int32)
    seats = np.cumsum([0, *(len(row.seated) for row in rows)])
    longest = max((len(row.sequence) for row in rows), default=0)
    histories = np.zeros((seats[-1], longest), dtype=np.int32)
    tables = np.zeros((seats[-1], -(-longest // block_size)), dtype=np.int32)
    for seat, row in zip(seats.tolist(), rows, strict=False):
        histories[seat, : len(row.sequence)] = row.sequence
        used = row.blocks[: tables.shape[1]]
        tables[seat, : len(used)] = used
    seats = seats[:-1]
    taken = [entry for row in rows for entry in row.seated]
    samples = np.repeat(np.arange(len(rows)), [row.samples for row in rows])
    nth = [choice for row in rows for choice in range(row.samples)]
    return StepPlan(
        step_id=1,
        block_size=block_size,
        requests=np.array([row.request for row in rows], dtype=np.int64),
        seats=seats.astype(np.int32),
        num_context=num_context,
        num_new=num_new,
        num_tokens=int(num_new.sum()),
        histories=histories,
        tables=tables,
        samples=samples.astype(np.int32),
        sample_requests=np.array([rows[row].request for row in samples], dtype=np.int64)
        + np.array(nth, dtype=np.int64),
        sample_seats=(seats[samples] + np.array(nth, dtype=np.int64)).astype(np.int32),
        seated=tuple(Seated(seat, *entry) for seat, entry in enumerate(taken)) if seated else (),
        copies=copies or make_copies(),
    )


def sampled(
    sampler: Sampler, logits: torch.Tensor, seats: np.ndarray, positions: np.ndarray
) -> Sampled:
    """One step of a sampler, from settings to what is told."""
    draws = sampler.draws(seats, positions)
    tokens = sampler.draw(logits, draws, [torch.from_numpy(array) for array in draws.arrays])
    return sampler.drawn(logits, draws, tokens.numpy())


def random_tokens(count: int, seed: int = 0, vocab_size: int = 49_152) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab_size, count).tolist()


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def save_tiny(folder: Path, **changes: object) -> transformers.LlamaForCausalLM:
    """Write a random Llama of two layers as a folder, through transformers."""
    config = transformers.LlamaConfig(
        **{
            "vocab_size": 101,
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 10,
            "max_position_embeddings": 256,
            "eos_token_id": [3, 7],
            "tie_word_embeddings": False,
            "rope_parameters": LLAMA3_ROPE,
            "initializer_range": 0.3,
            **changes,
        }
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(11)
        model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return model
