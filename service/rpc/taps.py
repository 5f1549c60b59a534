"""Tokens on their way into an outbox, past whoever reads their generations."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

from cadenza.service.generation import Generation
from cadenza.service.rpc import wire_format
from cadenza.service.rpc.outbox import Outbox
from cadenza.service.rpc.transcripts import Transcript
from cadenza.service.rpc.wire_format import heads
from cadenza.service.tap import TakeAll
from cadenza.service.token_texts import EncodedTexts, TokenTexts


class Taps:
    """Opens those of one stream's requests."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._ways: dict[EncodedTexts, _Way] = {}  # with the texts of control tokens, or without

    def open(self, generation: Generation, request_id: str, transcript: Transcript | None) -> None:
        """Let a generation's tokens go into the outbox as events of a request of this name.

        While its reader waits and has put all that came before there. All are added to
        `transcript`.
        """
        name = wire_format.encoded_name(request_id)

        def of_choice(choice: int, texts: TokenTexts) -> _Tap:
            if choice:
                return _Tap(name, choice, texts, self._outbox, transcript)
            return _FirstTap(name, texts, self._outbox, transcript, self._way(texts))

        generation.tap(of_choice)

    def _way(self, texts: TokenTexts) -> _Way:
        encoded = texts.encoded(wire_format.token)
        if encoded not in self._ways:
            self._ways[encoded] = _Way(self._outbox, encoded)
        return self._ways[encoded]


class _Tap:
    """A choice's tokens, one after another. Implements `tap.Tap`."""

    __slots__ = ("_choice", "_outbox", "_output", "_texts", "name")

    def __init__(
        self,
        name: bytes,
        choice: int,
        texts: TokenTexts,
        outbox: Outbox,
        transcript: Transcript | None,
    ) -> None:
        self.name = name
        self._choice = choice
        self._texts = texts
        self._outbox = outbox
        self._output = None if transcript is None else transcript.output(choice)

    @property
    def way(self) -> _Way | None:
        return None

    def take_plain(self, token: int) -> bool:
        text = self._texts[token]
        return text is not None and self._put(self._encoded(token, text))

    def take(self, token: int, text: str) -> bool:
        is_taken = self._put(self._encoded(token, text))
        if is_taken:
            self.told((token,))
        return is_taken

    def told(self, tokens: Sequence[int]) -> None:
        if self._output is not None:
            self._output.extend(tokens)

    def _encoded(self, token: int, text: str) -> bytes:
        return wire_format.tokens(self._choice, text, (token,))

    def _put(self, body: bytes) -> bool:
        if not self._outbox.has_room:
            return False
        self._outbox.put((wire_format.named(self.name, body),))
        return True


class _FirstTap(_Tap):
    """That of a first choice, for which tokens are kept encoded: each other would take as much."""

    __slots__ = ("_way",)

    def __init__(
        self,
        name: bytes,
        texts: TokenTexts,
        outbox: Outbox,
        transcript: Transcript | None,
        way: _Way,
    ) -> None:
        super().__init__(name, 0, texts, outbox, transcript)
        self._way = way

    @property
    def way(self) -> _Way:
        return self._way

    def take_plain(self, token: int) -> bool:
        body = self._way.encoded.find(token)
        return body is not None and self._put(body)


class _Way:
    """The first choices of a stream's requests: a step is one piece of a message.

    Implements `tap.Way`.
    """

    __slots__ = ("_outbox", "encoded")

    def __init__(self, outbox: Outbox, encoded: EncodedTexts) -> None:
        self._outbox = outbox
        self.encoded = encoded

    def together(self, taps: Sequence[_Tap]) -> TakeAll:
        outbox, find_all = self._outbox, self.encoded.find_all
        names = [tap.name for tap in taps]
        lengths = [*map(len, names)]
        message = [b""] * 3 * len(names)  # head, name and body of each event
        message[1::3] = names

        def take_all(tokens: Sequence[int]) -> bool:
            bodies = find_all(tokens) if outbox.has_room else None
            if bodies is None:
                return False
            # Without a loop in Python, as processors wait for less of memory at once in one
            message[::3] = map(heads.__getitem__, map(add, lengths, map(len, bodies)))
            message[2::3] = bodies
            outbox.put((b"".join(message),))
            return True

        return take_all
