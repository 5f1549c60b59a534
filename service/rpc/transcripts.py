"""What a session keeps of requests that have finished, so that others can go on from them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from cadenza.service.errors import InvalidRequest, UnknownRequest
from cadenza.service.events import Delta, Event, Finished, FinishReason
from cadenza.service.generation import Generation
from cadenza.service.request import Former, GenerationRequest

MAX_KEPT = 256  # requests a stream
MAX_KEPT_TOKENS = 256 * 1024  # a stream, which is 1 MiB
MAX_SERVER_TOKENS = 64 * MAX_KEPT_TOKENS  # all streams of a server, however many there are


class Transcript:
    """The tokens of one request, gathered from its events while they are told."""

    def __init__(self, prompt: Sequence[int], cache_salt: str | None, *, tells_stop: bool) -> None:
        """`tells_stop`: the stop token that ends a choice is part of its text."""
        self.cache_salt = cache_salt
        self._prompt = prompt
        self._outputs: dict[int, array[int]] = {}
        self._turn_ended: dict[int, bool] = {}  # of choices that have finished
        self._tells_stop = tells_stop

    @property
    def num_tokens(self) -> int:
        return len(self._prompt) + sum(map(len, self._outputs.values()))

    @property
    def num_choices(self) -> int:
        return len(self._turn_ended)

    def add(self, event: Event) -> None:
        """Take in one of the request's events."""
        if isinstance(event, Delta):
            self.output(event.choice).extend(event.token_ids)
        elif isinstance(event, Finished):
            self._turn_ended[event.choice] = self._ends_turn(event)

    def output(self, choice: int) -> array[int]:
        """A choice's tokens, to which those may be appended that are no event of their own."""
        return self._outputs.setdefault(choice, array("I"))

    def close(self) -> None:
        """The request has finished: what it was made of may be let go."""
        self._prompt = array("I", self._prompt)

    def former(self, choice: int) -> Former:
        """The prompt and one output, for a request that goes on from there."""
        output = self._outputs.get(choice, array("I"))
        return Former(
            token_ids=array("I", self._prompt) + output,
            turn_ended=bool(output) and self._turn_ended[choice],
        )

    def _ends_turn(self, end: Finished) -> bool:
        """Whether the last token ended the choice and has no part in its text."""
        if end.reason is not FinishReason.STOP:
            return False
        if end.stop_reason is None:
            return True
        # A stop string may be the end of some text
        return isinstance(end.stop_reason, int) and not self._tells_stop


def transcript_of(generation: Generation, request: GenerationRequest) -> Transcript:
    """That of a generation none of whose events has been told."""
    return Transcript(
        generation.prompt,
        request.cache_salt,
        tells_stop=bool(request.include_stop_str_in_output),
    )


class TranscriptBudget:
    """How many tokens all streams of a server keep together: the least recent are forgotten."""

    def __init__(self, max_tokens: int = MAX_SERVER_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._kept: dict[tuple[Transcripts, str], int] = {}  # tokens; the latest last

    def take(self, owner: Transcripts, request_id: str, num_tokens: int) -> None:
        """Count a transcript that is kept; owners forget older ones, perhaps this one as well."""
        self._kept[owner, request_id] = num_tokens
        self._num_tokens += num_tokens
        while self._num_tokens > self._max_tokens:
            oldest, name = next(iter(self._kept))
            oldest.forget(name)

    def give_back(self, owner: Transcripts, request_id: str) -> None:
        """A transcript is no longer kept."""
        self._num_tokens -= self._kept.pop((owner, request_id))


class Transcripts:
    """The latest transcripts by the names of their requests: bounded, the oldest forgotten first.

    A request that fails leaves what is kept under its name, if there is anything. `close` at the
    end of the stream.
    """

    def __init__(
        self,
        max_kept: int = MAX_KEPT,
        max_tokens: int = MAX_KEPT_TOKENS,
        budget: TranscriptBudget | None = None,
    ) -> None:
        """`budget` is shared by all streams; None: this one has its own."""
        self._max_kept = max_kept
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._budget = budget or TranscriptBudget()
        self._kept: dict[str, Transcript] = {}  # the oldest first
        self._unkept: dict[str, str] = {}  # why there is nothing, the oldest first

    def finished(self, request_id: str, transcript: Transcript) -> None:
        """Keep a transcript that is complete, in place of an older one of that name."""
        self.forget(request_id)
        num_tokens = transcript.num_tokens
        if num_tokens > self._max_tokens:
            self._explain(request_id, f"has {num_tokens} tokens, too many to be kept")
            return
        transcript.close()
        self._unkept.pop(request_id, None)
        self._num_tokens += num_tokens
        self._kept[request_id] = transcript
        self._budget.take(self, request_id, num_tokens)
        while len(self._kept) > self._max_kept or self._num_tokens > self._max_tokens:
            self.forget(next(iter(self._kept)))

    def failed(self, request_id: str) -> None:
        """Remember that a request has failed, to tell so."""
        if request_id not in self._kept:
            self._explain(request_id, "failed or was cancelled")

    def forget(self, request_id: str) -> None:
        """Keep nothing of a request. Idempotent."""
        transcript = self._kept.pop(request_id, None)
        if transcript is not None:
            self._num_tokens -= transcript.num_tokens
            self._budget.give_back(self, request_id)

    def close(self) -> None:
        """Forget everything."""
        for request_id in [*self._kept]:
            self.forget(request_id)

    def find(self, request_id: str, choice: int) -> Transcript:
        """What is kept of a request that had such a choice.

        Raises:
            UnknownRequest: nothing is.
            InvalidRequest: it had fewer choices.
        """
        transcript = self._kept.get(request_id)
        if transcript is None:
            raise UnknownRequest(self._why_unknown(request_id))
        if choice >= transcript.num_choices:
            last = transcript.num_choices - 1
            raise InvalidRequest(
                f"choice is {choice}, but the last of {request_id!r} is {last}.", "choice"
            )
        return transcript

    def _explain(self, request_id: str, reason: str) -> None:
        self._unkept.pop(request_id, None)
        self._unkept[request_id] = reason
        if len(self._unkept) > self._max_kept:
            del self._unkept[next(iter(self._unkept))]

    def _why_unknown(self, request_id: str) -> str:
        if reason := self._unkept.get(request_id):
            return f"Request {request_id!r} {reason}: there is nothing to go on from."
        return (
            f"No finished request {request_id!r} is kept on this stream, which keeps the "
            f"latest {self._max_kept}, or fewer with {self._max_tokens} tokens together, or "
            "where the server's streams have too many."
        )
