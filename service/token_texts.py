"""The text of a token by itself, where that is what it stands for in any context."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tokenizers
from tokenizers import decoders

INCOMPLETE = "\ufffd"  # what decoders say for bytes that are no character, or not yet

Encode: TypeAlias = Callable[[int, str], bytes]  # a token and its text, as a protocol has them


class TokenTexts(dict[int, str | None]):
    """A vocabulary's texts by token, looked up once each. None: it depends on what is around.

    Decoders of byte-level vocabularies only join bytes, so that whole characters are the same text
    everywhere, and decoding what came before again would change nothing. Of other decoders, some of
    which strip or insert spaces, nothing is assumed.
    """

    def __init__(self, backend: tokenizers.Tokenizer, *, skip_special_tokens: bool) -> None:
        super().__init__()
        self._backend = backend
        self._skip = skip_special_tokens
        self._encoded: dict[Encode, EncodedTexts] = {}
        self.need_context = not isinstance(backend.decoder, decoders.ByteLevel)

    def __missing__(self, token_id: int) -> str | None:
        text = self[token_id] = self._alone(token_id)
        return text

    def encoded(self, encode: Encode) -> EncodedTexts:
        """The same as bytes, once for each `encode`, which are few functions."""
        if encode not in self._encoded:
            self._encoded[encode] = EncodedTexts(self, encode)
        return self._encoded[encode]

    def _alone(self, token_id: int) -> str | None:
        if self.need_context:
            return None
        text = str(self._backend.decode([token_id], skip_special_tokens=self._skip))
        return None if INCOMPLETE in text else text


class EncodedTexts(dict[int, bytes | None]):
    """What is sent of each token of `TokenTexts`, encoded once each. None: as there."""

    def __init__(self, texts: TokenTexts, encode: Encode) -> None:
        super().__init__()
        self._texts = texts
        self._encode = encode

    def __missing__(self, token_id: int) -> bytes | None:
        text = self._texts[token_id]
        encoded = self[token_id] = None if text is None else self._encode(token_id, text)
        return encoded
