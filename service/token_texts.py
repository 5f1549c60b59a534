"""The text of a token by itself, where that is what it stands for in any context."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders

INCOMPLETE = "\ufffd"  # what decoders say for bytes that are no character, or not yet


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
        self.need_context = not isinstance(backend.decoder, decoders.ByteLevel)

    def __missing__(self, token_id: int) -> str | None:
        text = self[token_id] = self._alone(token_id)
        return text

    def _alone(self, token_id: int) -> str | None:
        if self.need_context:
            return None
        text = str(self._backend.decode([token_id], skip_special_tokens=self._skip))
        return None if INCOMPLETE in text else text
