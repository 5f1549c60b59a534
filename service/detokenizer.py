"""Token ids to text, one choice at a time and never half a character."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Sequence

import tokenizers

from cadenza.service.token_texts import INCOMPLETE, TokenTexts

# Python reads a codec's module from disk when it is first used, which would be on the loop.
_SURROGATES = "utf-16-le"
codecs.lookup(_SURROGATES)

# How much of a prompt a decoder must see to join correctly (leading spaces, tokens without text).
_CONTEXT_TOKENS = 8
# A UTF-8 character has at most four bytes, so that this many open tokens are no character.
_MAX_HELD = 4


class Detokenizer:
    """Decodes incrementally. The pieces joined are the text, however the ids were split.

    A character's text comes with its last token. Bytes that never become a character come out as
    U+FFFD after a few tokens, or at the end. Special tokens have no text unless that is wanted.
    """

    __slots__ = ("_backend", "_before", "_context", "_held", "_skip", "texts")

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
        self.texts = texts
        self._held: list[int] = []
        self._context = self._whole(prompt[-_CONTEXT_TOKENS:]) if texts.need_context else []
        self._before = self._decode(self._context)

    @property
    def is_whole(self) -> bool:
        """Whether no token is held, so that the text of the next one is that of `texts`, if any."""
        return not self._held

    def push(self, token_id: int) -> str:
        """The text that this token completes, perhaps none."""
        if not self._held and (text := self.texts[token_id]) is not None:
            return text
        self._held.append(token_id)
        text = self._added(self._held)
        if text.endswith(INCOMPLETE):
            return self._overdue(text) if len(self._held) > _MAX_HELD else ""
        self._follow(text)
        self._held.clear()
        return encodable(text)

    def flush(self) -> str:
        """The text of what is held, its incomplete bytes as U+FFFD."""
        text = self._added(self._held)
        self._held.clear()
        return encodable(text)

    def _overdue(self, text: str) -> str:
        """What of `text`, that of the held tokens, none can change that comes later.

        Only the last tokens may be a character yet, and only where one begins with the first of
        them.
        """
        for num_open in range(_MAX_HELD - 1, 0, -1):
            settled, still_open = self._held[:-num_open], self._held[-num_open:]
            said = self._added(settled)
            if said + self._decode(still_open) == text:
                self._held = still_open
                return encodable(said)
        return self.flush()

    def _added(self, held: list[int]) -> str:
        """What tokens add to the text of those before, whatever that text ends with.

        The library's own DecodeStream takes a prompt that ends with U+FFFD for one that is not
        finished, and would say the prompt's last words again. What never became a character is not
        part of the context, or the bytes that follow it would seem to belong to it.
        """
        if not self._context:
            return self._decode(held)
        text = self._decode(self._context + held)
        if text.startswith(self._before):
            return text[len(self._before) :]
        return self._decode(held)  # some decoders make all bytes in a row U+FFFD, or none

    def _follow(self, text: str) -> None:
        """Let what comes next be decoded after the held tokens, whose text is `text`."""
        if not self.texts.need_context:
            return
        if text:
            self._context.clear()
        if len(self._context) < _CONTEXT_TOKENS:  # else they are one of many without text
            self._context += self._held
            self._before = self._decode(self._context)

    def _whole(self, prompt: Sequence[int]) -> list[int]:
        """The end of a prompt without the half characters that it may begin and end with."""
        for end, start in itertools.product(range(_MAX_HELD), repeat=2):
            whole = list(prompt[start : len(prompt) - end])
            text = self._decode(whole)
            if not (text.startswith(INCOMPLETE) or text.endswith(INCOMPLETE)):
                return whole
        return list(prompt)

    def _decode(self, ids: list[int]) -> str:
        return str(self._backend.decode(ids, skip_special_tokens=self._skip))


def encodable(text: str) -> str:
    """`text` with U+FFFD for each lone surrogate, which neither JSON nor protobuf can carry."""
    if text.isascii():
        return text
    return text.encode(_SURROGATES, "surrogatepass").decode(_SURROGATES, "replace")
