"""`vllm bench serve`, of the venv that VLLM_VENV names: it is too large to install by the way."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from tests.clients.case import Result, Setting, expect, judged, run

NUM, OUTPUT = 8, 16

RANDOM = ("random", "--random-input-len", "64", "--random-output-len", str(OUTPUT))
SHARED = (
    "prefix_repetition",
    *("--prefix-repetition-prefix-len", "64", "--prefix-repetition-suffix-len", "16"),
    *("--prefix-repetition-num-prefixes", "2", "--prefix-repetition-output-len", str(OUTPUT)),
)
COMPLETIONS = ("--backend", "openai", "--endpoint", "/v1/completions")
CHAT = ("--backend", "openai-chat", "--endpoint", "/v1/chat/completions")

CASES = {
    "random": (*COMPLETIONS, "--dataset-name", *RANDOM),
    "prefix repetition": (*COMPLETIONS, "--dataset-name", *SHARED),
    "random chat": (*CHAT, "--dataset-name", *RANDOM),
}


def cases(setting: Setting) -> Iterator[Result]:
    """Each data set, as the client's own report has it."""
    program = Path(os.environ.get("VLLM_VENV", "")) / "bin" / "vllm"
    for name, flags in CASES.items():
        title = f"vllm bench serve: {name}"
        if program.is_file():
            yield judged(title, lambda flags=flags: _bench(setting, program, flags))
        else:
            yield Result(title, "VLLM_VENV must name a venv with vLLM", is_skip=True)


def _bench(setting: Setting, program: Path, flags: tuple[str, ...]) -> None:
    command = [program, "bench", "serve", "--model", setting.model, *flags]
    command += ["--tokenizer", setting.tokenizer, "--base-url", setting.url]
    command += ["--num-prompts", str(NUM), "--max-concurrency", "2", "--ignore-eos"]
    command += ["--temperature", "0", "--disable-tqdm", "--save-result"]
    command += ["--result-dir", setting.scratch, "--result-filename", "vllm.json"]
    run(command, VLLM_TARGET_DEVICE="cpu", HF_HUB_OFFLINE="1")
    told = json.loads((setting.scratch / "vllm.json").read_text())
    expect((told["completed"], told["failed"]), (NUM, 0), "requests completed and failed")
    expect(told["total_output_tokens"], NUM * OUTPUT, "tokens")
