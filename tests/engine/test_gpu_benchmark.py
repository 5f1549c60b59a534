"""`make bench-gpu` as far as it goes without a GPU: on the CPU, with a small model."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = {"layers": 2, "hidden": 64, "inner": 96, "heads": 4, "kv_heads": 2, "vocabulary": 128}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark as a module; its names are those of scripts, and not kept."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [*sys.path, str(BENCHMARKS)])
    import gpu

    yield gpu
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_without_a_gpu_it_says_so_and_ends_with_3(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for arguments in ([], ["--only-look"]):
        monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])

        assert gpu.main() == 3
        assert capsys.readouterr().err.startswith("There is no NVIDIA GPU")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gpu.main() == 0


def test_tables_of_a_small_model(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "STEPS", 2)
    config = sys.modules["random_model"].llama(**SIZES)
    model = gpu.load_random(config, torch.device("cpu"))
    loads = [gpu.Load(2, 20, 3), gpu.Load(3, 5, 2)]

    decode = gpu.decode_table(config, model, (1, 3), 40).splitlines()
    serving = gpu.serving_table(config, model, loads, [None, 12345.6], num_blocks=30).splitlines()

    assert len(decode) == len(serving) == 4
    assert decode[2].startswith("| 1 | 40 | ")
    assert serving[2].startswith("| 2 x 20/3 | ")
    assert serving[2].endswith(" | - |")
    assert serving[3].endswith(" | 12,346 |")


def test_what_a_decode_reads_at_least_is_known(gpu: Any) -> None:
    """Llama 3.1 8B has 8.03e9 weights, of which the embedding's 0.53e9 are not read."""
    assert gpu.num_weights(gpu.LLAMA_8B) == pytest.approx(7.5e9, rel=0.01)
    # 128 KiB a token in the cache
    more = gpu.decode_bytes(gpu.LLAMA_8B, 64, 1000) - gpu.decode_bytes(gpu.LLAMA_8B, 64, 0)
    assert more == 64 * 1000 * (128 << 10)


def test_a_peer_is_given_ids_and_answers_with_rates(gpu: Any, tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(
        f"#!{sys.executable} -I\nimport json, sys\nwork = json.load(sys.stdin)\n"
        "print('noise')\nprint([sum(map(len, p)) for p in work['prompts']])\n"
    )
    python.chmod(0o755)

    rates = gpu.serve_vllm(tmp_path, gpu.LLAMA_8B, [gpu.Load(2, 5, 1), gpu.Load(3, 7, 1)])

    assert rates == [10.0, 21.0]


def test_the_peers_script_asks_vllm_for_ids_alone(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    class LLM:
        def __init__(self, **options: object) -> None:
            asked.append(options)

        def generate(self, prompts: list[dict[str, list[int]]], *_: object, **__: object) -> None:
            asked.append([prompt["prompt_token_ids"] for prompt in prompts])

    vllm = ModuleType("vllm")
    vllm.LLM, vllm.SamplingParams = LLM, dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    work = {"model": "folder", "prompts": [[[1, 2], [3, 4]]], "outputs": [5]}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(work)))
    import vllm_engine

    vllm_engine.main()

    assert asked[0]["load_format"] == "dummy"
    assert asked[1:] == [[[1, 2], [3, 4]]] * 2
    [rate] = json.loads(capsys.readouterr().out)
    assert np.isfinite(rate)
