"""vLLM's engine under loads of `gpu.py`, run by the Python of its venv: ids in, rates out."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main() -> None:
    from vllm import LLM, SamplingParams

    work: dict[str, Any] = json.load(sys.stdin)
    llm = LLM(
        model=work["model"],
        load_format="dummy",
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_model_len=2048,
    )
    rates = []
    for prompts, output in zip(work["prompts"], work["outputs"], strict=True):
        sampling = SamplingParams(
            max_tokens=output, temperature=0.0, ignore_eos=True, detokenize=False
        )
        given = [{"prompt_token_ids": ids} for ids in prompts]
        llm.generate(given, sampling, use_tqdm=False)  # warms up
        start_s = time.perf_counter()
        llm.generate(given, sampling, use_tqdm=False)
        rates.append(len(prompts) * output / (time.perf_counter() - start_s))
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
