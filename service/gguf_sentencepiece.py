"""A `tokenizers.Tokenizer` from a GGUF file whose tokenizer is SentencePiece's BPE.

Such a file has a score for each token instead of merges: of all neighbours whose text together is
a token, those of the best score are joined first (`llm_tokenizer_spm` in llama.cpp/src/
llama-vocab.cpp). As merges that is every way to part a token into two others, in the order of the
scores. What no token has is spelt in bytes. Gemma, Mistral and Phi-3 have such tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers

_SPACE = "\u2581"  # in place of a space
_NORMAL, _UNKNOWN = 1, 2  # values of tokenizer.ggml.token_type


def sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    """The tokenizer of `metadata`, without its control tokens.

    tokens: tokenizer.ggml.tokens. Scores and types are as many.
    """
    kinds = [int(kind) for kind in metadata["tokenizer.ggml.token_type"]]
    scores = [float(score) for score in metadata["tokenizer.ggml.scores"]]
    unknown = next((tokens[i] for i, kind in enumerate(kinds) if kind == _UNKNOWN), None)
    merges = _merges(
        {
            token: score
            for token, score, kind in zip(tokens, scores, kinds, strict=True)
            if kind == _NORMAL
        }
    )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True
        )
    )
    replaced = normalizers.Replace(" ", _SPACE)
    parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replaced])
        parts.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = replaced
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def _merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every two tokens whose text together is a token, the best of those first."""
    found = [
        (score, token[:at], token[at:])
        for token, score in scores.items()
        for at in range(1, len(token))
        if token[:at] in scores and token[at:] in scores
    ]
    found.sort(key=lambda merge: -merge[0])  # stable: of one token, the shortest beginning first
    return [(left, right) for _, left, right in found]
