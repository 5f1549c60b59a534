"""The text of a token by itself, where that is what it stands for in any context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import TypeAlias

import tokenizers
from tokenizers import decoders

INCOMPLETE = "\ufffd"  # what decoders say for bytes that are no character, or not yet

Encode: TypeAlias = Callable[[int, str], bytes]  # a token and its text, as a protocol has them

_AT_ONCE = 1 << 10  # tokens that are looked up, in some milliseconds, before others have a turn
_MOST = 1 << 16  # that are looked up beforehand; in vocabularies by frequency the others are rare


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

    @property
    def vocab_size(self) -> int:
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encoded(self, encode: Encode) -> EncodedTexts:
        """The same as bytes, once for each `encode`, which are few functions."""
        if encode not in self._encoded:
            self._encoded[encode] = EncodedTexts(self, encode, self.vocab_size)
        return self._encoded[encode]

    async def look_up(self, encodes: Iterable[Encode]) -> None:
        """Have texts at hand, and encoded, of which else each is looked up while a stream waits."""
        encoded = [self.encoded(encode) for encode in encodes]
        last = 0 if self.need_context else min(self.vocab_size, _MOST)
        for first in range(0, last, _AT_ONCE):
            for token_id in range(first, min(first + _AT_ONCE, last)):
                for each in encoded:
                    each.find(token_id)
            await asyncio.sleep(0)

    def _alone(self, token_id: int) -> str | None:
        if self.need_context:
            return None
        text = str(self._backend.decode([token_id], skip_special_tokens=self._skip))
        return None if INCOMPLETE in text else text


class EncodedTexts:
    """What is sent of each token of `TokenTexts`, encoded once each.

    By number, as looking a token up in a dictionary touches twice as many places in memory, of
    which few are in the caches.
    """

    __slots__ = ("_encode", "_encoded", "_texts")

    def __init__(self, texts: TokenTexts, encode: Encode, vocab_size: int) -> None:
        self._texts = texts
        self._encode = encode
        self._encoded: list[bytes | None] = [None] * vocab_size

    def find_all(self, token_ids: Sequence[int]) -> Sequence[bytes] | None:
        """Those of two tokens or more, none of which is empty. None: some token has none."""
        try:
            found = itemgetter(*token_ids)(self._encoded)
        except IndexError:
            return None
        if not all(found):
            found = [self.find(token_id) for token_id in token_ids]
        return found if all(found) else None

    def find(self, token_id: int) -> bytes | None:
        """None: the text depends on what is around."""
        if token_id >= len(self._encoded):  # as models have that were padded to a round number
            return None
        encoded = self._encoded[token_id]
        if encoded is None and (text := self._texts[token_id]) is not None:
            encoded = self._encoded[token_id] = self._encode(token_id, text)
        return encoded
