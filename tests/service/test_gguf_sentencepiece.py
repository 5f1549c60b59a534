"""SentencePiece's BPE from a GGUF file, against llama.cpp's way to join pieces, written plainly."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from cadenza.service.gguf_tokenizer import build_tokenizer
from cadenza.service.tokenizer import Tokenizer

SPACE = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = ["a", "b", "c", SPACE, "n"]
END = "<end>"


def vocabulary(seed: int) -> dict[str, float]:
    """Tokens of up to six letters, each of two others and with a score of its own."""
    chance = random.Random(seed)
    tokens = list(LETTERS)
    while len(tokens) < 60:
        token = chance.choice(tokens) + chance.choice(tokens)
        if len(token) <= 6 and token not in tokens:
            tokens.append(token)
    scores = list(range(len(tokens)))
    chance.shuffle(scores)
    return dict(zip(tokens, map(float, scores), strict=True))


def metadata_of(scores: dict[str, float], **changes: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", END, *BYTES, *scores]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + list(scores.values()),
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(scores),
        "tokenizer.ggml.add_space_prefix": False,
        **changes,
    }


def joined(text: str, scores: dict[str, float]) -> list[str]:
    """The pieces of a text: the best two neighbours, the first of equals, become one, and so on."""
    pieces = list(text.replace(" ", SPACE))
    while True:
        pairs = [
            (-scores[pair], at)
            for at, pair in enumerate(map("".join, pairwise(pieces)))
            if pair in scores
        ]
        if not pairs:
            break
        _, at = min(pairs)
        pieces[at : at + 2] = ["".join(pieces[at : at + 2])]
    return [
        spelt
        for piece in pieces
        for spelt in ([piece] if piece in scores else [BYTES[byte] for byte in piece.encode()])
    ]


@pytest.mark.parametrize("seed", range(8))
def test_pieces_are_joined_as_llama_cpp_joins_them(seed: int):
    scores = vocabulary(seed)
    backend: Backend = build_tokenizer(metadata_of(scores))
    chance = random.Random(100 + seed)
    for _ in range(60):
        text = "".join(chance.choices("abcn \u00e9", k=chance.randint(1, 40)))
        assert backend.encode(text).tokens == joined(text, scores), text
        assert backend.decode(backend.encode(text).ids) == text


def test_a_space_comes_before_the_text_unless_the_file_says_otherwise():
    scores = dict.fromkeys([*LETTERS, f"{SPACE}a"], 0.0)
    changes = {"tokenizer.ggml.add_space_prefix": True}
    backend: Backend = build_tokenizer(metadata_of(scores, **changes))

    assert backend.encode("a b").tokens == [f"{SPACE}a", SPACE, "b"]
    assert backend.decode(backend.encode("a b").ids) == "a b"


def test_control_tokens_are_parsed_and_can_be_guarded():
    tokenizer = Tokenizer(build_tokenizer(metadata_of(dict.fromkeys([*LETTERS, "e", "d"], 0.0))))

    ids = tokenizer.encode_text(f"a{END}b")

    assert tokenizer.names(ids) == ["a", END, "b"]
    assert tokenizer.decode(ids) == f"a{END}b"
