"""A `tokenizers.Tokenizer` from the metadata of a GGUF file.

Byte-level BPE (`tokenizer.ggml.model` "gpt2") with a pre-tokeniser that we know, since a wrong one
would still give ids, only worse ones, so that an unknown one is refused; and SentencePiece's BPE
("llama"), which `gguf_sentencepiece.py` builds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from cadenza.checkpoints.errors import CheckpointError
from cadenza.service.gguf_sentencepiece import sentencepiece

_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type

_ARRAYS = {  # that each tokenizer.ggml.model needs
    "gpt2": ("tokens", "merges", "token_type"),
    "llama": ("tokens", "scores", "token_type"),
}

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


class UnsupportedTokenizer(CheckpointError):
    """The file's tokenizer is of a kind that we cannot build; the message names it."""


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that `metadata` describes.

    Raises:
        UnsupportedTokenizer: another model than these two, an unknown pre-tokeniser, or no
            vocabulary.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind not in _ARRAYS:
        raise UnsupportedTokenizer(
            f"the tokenizer model {kind!r} is not supported, only {', '.join(_ARRAYS)}"
        )
    arrays: dict[str, Any] = {
        name: metadata.get(f"tokenizer.ggml.{name}") for name in _ARRAYS[kind]
    }
    for name, array in arrays.items():
        if not _holds(array, texts=name in ("tokens", "merges")):
            raise UnsupportedTokenizer(f"the file has no usable tokenizer.ggml.{name}")
    if len({len(array) for name, array in arrays.items() if name != "merges"}) > 1:
        raise UnsupportedTokenizer("the file's tokens, types and scores are not as many")
    tokens = metadata["tokenizer.ggml.tokens"]
    build = sentencepiece if kind == "llama" else _byte_level
    tokenizer = build(metadata, tokens)
    _add_tokens(tokenizer, tokens, metadata["tokenizer.ggml.token_type"])
    return tokenizer


def _byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> Tokenizer:
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    merges = [_pair(merge) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    for left, right in merges:
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise UnsupportedTokenizer(f"the merge {left + ' ' + right!r} is not one of tokens")
    # llama-bpe was made from a tiktoken file: a word that is a token is never merged up to
    model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre == "llama-bpe")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _pre_tokenizer(pre)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _holds(array: Any, *, texts: bool) -> bool:
    """Whether metadata is an array of texts, or else of numbers."""
    if texts:
        return isinstance(array, list) and all(isinstance(text, str) for text in array)
    return isinstance(array, list | np.ndarray) and np.asarray(array).dtype.kind in "biuf"


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _add_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: Any) -> None:
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(added)


def _pre_tokenizer(pre: str) -> PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    match pre:
        case "default" | "gpt2" | "gpt-2" | "olmo":
            return gpt2
        case "smollm" | "starcoder" | "refact" | "command-r" | "codeshell":
            digits = pre_tokenizers.Digits(individual_digits=True)
            return pre_tokenizers.Sequence([digits, gpt2])
        case "llama-bpe" | "llama3":
            return pre_tokenizers.Sequence([_split(_LLAMA3), byte_level])
        case "qwen2" | "stablelm2":
            return pre_tokenizers.Sequence([_split(_QWEN2), byte_level])
    raise UnsupportedTokenizer(f"the pre-tokeniser {pre!r} is not supported")


def _split(pattern: str) -> PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")
