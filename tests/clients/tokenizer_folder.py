"""The demo model's tokenizer as a folder, for clients that want one of transformers."""

from __future__ import annotations

import json
from pathlib import Path

from cadenza.checkpoints.gguf import read_gguf
from cadenza.checkpoints.locate import locate
from cadenza.service.gguf_tokenizer import build_tokenizer


def write_tokenizer(folder: Path) -> None:
    """Write what `AutoTokenizer.from_pretrained` reads."""
    metadata = read_gguf(locate("demo").path).metadata
    tokens = metadata["tokenizer.ggml.tokens"]
    build_tokenizer(metadata).save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": metadata["tokenizer.chat_template"],
        "bos_token": str(tokens[metadata["tokenizer.ggml.bos_token_id"]]),
        "eos_token": str(tokens[metadata["tokenizer.ggml.eos_token_id"]]),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
