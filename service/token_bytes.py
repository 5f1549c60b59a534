"""The bytes that a token stands for, whatever notation its vocabulary uses."""

from __future__ import annotations

import re

import tokenizers

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes:
    """A vocabulary's bytes, token by token."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._added = {i: token.content for i, token in backend.get_added_tokens_decoder().items()}
        self._byte_level = "ByteLevel" in repr(backend.decoder)
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.longest: int = max(map(len, vocabulary), default=1)  # in characters

    def __getitem__(self, token_id: int) -> bytes:
        """The token's own bytes; none for an id outside the vocabulary."""
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_level and _BYTE_OF.keys() >= set(token):
            return bytes(map(_BYTE_OF.__getitem__, token))
        fallback = _BYTE_FALLBACK.fullmatch(token)
        if fallback:
            return bytes.fromhex(fallback[1])
        return token.replace("\u2581", " ").encode()


def _bytes_by_character() -> dict[str, int]:
    # GPT-2's alphabet: printable bytes stand for themselves, the others follow from 256 on
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in table.values())
    table.update({chr(256 + offset): byte for offset, byte in enumerate(others)})
    return table


_BYTE_OF = _bytes_by_character()
