"""Token ids to text, one choice at a time and never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import tokenizers
from tokenizers.decoders import DecodeStream

from cadenza.service.token_texts import TokenTexts

# Python reads a codec's module from disk when it is first used, which would be on the loop.
_SURROGATES = "utf-16-le"
codecs.lookup(_SURROGATES)

# How much of what came before a decoder must see to join correctly (leading spaces, a byte pair).
_CONTEXT_TOKENS = 8
_TRIM_TOKENS = 64
# A UTF-8 character has at most four bytes, so that this many open tokens are no character.
_MAX_HELD = 4


class Detokenizer:
    """Decodes incrementally. The pieces joined are the text, however the ids were split.

    A character's text comes with its last token. Bytes that never become a character come out as
    U+FFFD after a few tokens, or at the end. Special tokens have no text unless that is wanted.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        prompt: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        texts: TokenTexts | None = None,
    ) -> None:
        """`texts`: of `backend`, with the same `skip_special_tokens`; shared by all choices."""
        self._backend = backend
        self._skip = skip_special_tokens
        if texts is None:
            texts = TokenTexts(backend, skip_special_tokens=skip_special_tokens)
        self._texts = texts
        self._recent = list(prompt[-_CONTEXT_TOKENS:])  # context, then the held tokens
        self._num_held = 0
        self._stream: DecodeStream | None = None  # that has seen `_recent`; None: it is not needed

    def push(self, token_id: int) -> str:
        """The text that this token completes, perhaps none."""
        if not self._num_held and (text := self._texts[token_id]) is not None:
            self._recent.append(token_id)
            self._stream = None
            if len(self._recent) > _TRIM_TOKENS:
                self._settle()
            return text
        return self._decode_next(token_id)

    def _decode_next(self, token_id: int) -> str:
        if self._stream is None:
            self._stream = self._start()
        self._recent.append(token_id)
        self._num_held += 1
        try:
            text = self._stream.step(self._backend, token_id)
        except Exception:
            # "Invalid prefix encountered" (a plain Exception): the decoder rewrote what it had
            # said, which some normalising decoders do. Decoding the held ids afresh loses nothing.
            return self.flush()
        if text is None:
            return self.flush() if self._num_held > _MAX_HELD else ""
        self._settle()
        return encodable(text)

    def flush(self) -> str:
        """The text of what is held, its incomplete bytes as U+FFFD."""
        if not self._num_held:
            return ""
        context, held = self._recent[: -self._num_held], self._recent[-self._num_held :]
        before, text = self._decode(context), self._decode(self._recent)
        # The prompt's end may join with the first held bytes; then there is no common prefix
        said = text[len(before) :] if text.startswith(before) else self._decode(held)
        self._settle()
        self._stream = None
        return encodable(said)

    def _settle(self) -> None:
        self._num_held = 0
        if len(self._recent) > _TRIM_TOKENS:
            del self._recent[:-_CONTEXT_TOKENS]

    def _start(self) -> DecodeStream:
        return DecodeStream(ids=self._recent[-_CONTEXT_TOKENS:], skip_special_tokens=self._skip)

    def _decode(self, ids: list[int]) -> str:
        return str(self._backend.decode(ids, skip_special_tokens=self._skip))


def encodable(text: str) -> str:
    """`text` with U+FFFD for each lone surrogate, which neither JSON nor protobuf can carry."""
    if text.isascii():
        return text
    return text.encode(_SURROGATES, "surrogatepass").decode(_SURROGATES, "replace")
