"""What differs between chat and completions, as one seam."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from cadenza.service.events import Delta, Finished, PositionLogprobs
from cadenza.service.http.call import Call
from cadenza.service.http.logprobs import JsonList


@dataclass(slots=True, eq=False)
class ChoiceState:
    """One choice of the answer, as far as it has been told."""

    index: int  # over all prompts of the call
    begun: bool = False
    around: tuple[bytes, bytes] | None = None  # the text in its chunks; None: not yet known
    num_chars: int = 0  # of the tokens told, for text offsets
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: defaultdict[str, JsonList] = field(default_factory=lambda: defaultdict(JsonList))
    finished: Finished | None = None
    prompt_logprobs: msgspec.Raw | None = None  # of its prompt


class Dialect(Protocol):
    """**Protocol:** OpenAI's words for one endpoint. Everything returned is plain JSON."""

    id_prefix: str
    object: str  # of a whole answer
    chunk_object: str  # of a streamed one
    scores_choices: bool  # whether each choice tells of its prompt's tokens, or the answer does

    def parse(self, body: Mapping[str, Any]) -> Call:
        """The call in a body. Raises InvalidRequest naming the field."""
        ...

    def opening(self, choice: ChoiceState) -> dict[str, Any] | None:
        """What is said before a choice's first text, if anything."""
        ...

    def delta(self, choice: ChoiceState, delta: Delta) -> dict[str, Any]:
        """New output of a choice."""
        ...

    def ending(self, choice: ChoiceState, finished: Finished) -> dict[str, Any]:
        """A choice's end, which carries no text: strict clients drop text that comes with it."""
        ...

    def keep_logprobs(self, choice: ChoiceState, logprobs: Sequence[PositionLogprobs]) -> None:
        """Encode the next log-probabilities, never none, for `whole`."""
        ...

    def whole(self, choice: ChoiceState) -> dict[str, Any]:
        """A choice of an answer that is not streamed."""
        ...
