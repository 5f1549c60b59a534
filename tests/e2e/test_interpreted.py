"""The engine on Triton's kernels, interpreted: a real prompt gets the reference's greedy ids."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cadenza.checkpoints import locate
from cadenza.service.tokenizer import load_tokenizer

NUM_TOKENS = 3


@pytest.mark.extra
@pytest.mark.timeout(600)  # 40 s of a core, and more where it is shared
def test_a_real_prompt_gets_the_ids_that_transformers_chooses(reference: torch.nn.Module) -> None:
    """In chunks, beside another row, over blocks of four; each choice is clear by a margin."""
    prompt = load_tokenizer(locate("demo").path).encode_text("The capital of France is")

    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "tests.e2e.interpreted"),
            *map(str, (NUM_TOKENS, *prompt)),
        ],
        env={**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    tokens = json.loads(done.stdout.splitlines()[-1])
    with torch.inference_mode():
        given = torch.tensor([[*prompt, *tokens[:-1]]])
        logits = reference(given, logits_to_keep=NUM_TOKENS).logits[0]
    best = logits.topk(2).values
    assert len(tokens) == NUM_TOKENS
    assert tokens == logits.argmax(-1).tolist()
    assert float((best[:, 0] - best[:, 1]).min()) > 1e-3
