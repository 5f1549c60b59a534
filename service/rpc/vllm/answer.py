"""One request's answer in vLLM's messages: a chunk a delta, and at each choice's end the whole."""

from __future__ import annotations

from collections.abc import Iterator

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from cadenza.service.errors import InvalidRequest
from cadenza.service.events import Admitted, Delta, Event, Finished, PromptScored
from cadenza.service.rpc.connections import MAX_MESSAGE_BYTES
from cadenza.service.rpc.vllm.codec import add_input_logprobs, add_output_logprobs

_ABORTED = "abort"


class Answer:
    """Makes a generation's messages of its events, or of parts of these.

    A streamed answer tells new tokens in chunks, and every choice's end in a `complete` of its own,
    with all its token ids. The log-probabilities are in the chunks, the prompt's in each choice's
    first. An answer that is not streamed is one `complete` a choice, in order, once all have ended.
    """

    def __init__(
        self, request: pb.GenerateRequest, num_choices: int, prompt_tokens: int = 0
    ) -> None:
        """`prompt_tokens`: 0 where they were not counted."""
        params = request.sampling_params
        self._is_streamed = request.stream
        self._has_top = params.logprobs > 0
        self._has_input_top = params.prompt_logprobs > 0
        self._prompt_tokens = prompt_tokens
        self._cached_tokens = 0
        choices = range(num_choices)
        self._responses = [
            pb.GenerateResponse(complete=pb.GenerateComplete(index=choice)) for choice in choices
        ]
        self._unfinished = set(choices)
        self._input_logprobs: pb.InputLogProbs | None = None  # where they are wanted, and known
        self._without_input = set(choices)  # that have not told them
        # At most so many bytes have the log-probabilities of the prompt, and of each choice
        self._input_bytes = 0
        self._output_bytes = [0 for _ in choices]

    @property
    def is_over(self) -> bool:
        """Whether every choice has ended."""
        return not self._unfinished

    def told(self, event: Event) -> Iterator[bytes]:
        """The messages that an event, or a part of one, makes.

        Raises:
            InvalidRequest: one would be larger than clients accept; of an answer that is not
                streamed, before any is told.
        """
        match event:
            case Admitted():
                self._cached_tokens = event.cached_tokens
            case PromptScored():
                self._score(event)
            case Delta():
                if event.token_ids:  # else a text alone, of which nothing is told
                    yield from self._delta(event)
            case Finished():
                yield from self._finished(event)

    def aborted(self) -> Iterator[bytes]:
        """The ends of all choices that have not ended."""
        for choice in sorted(self._unfinished):
            self._responses[choice].complete.finish_reason = _ABORTED
        unfinished, self._unfinished = self._unfinished, set()
        yield from self._completes(sorted(unfinished))

    def _score(self, scored: PromptScored) -> None:
        if self._input_logprobs is None:
            self._input_logprobs = pb.InputLogProbs()
        self._input_bytes += add_input_logprobs(
            self._input_logprobs, scored.logprobs, has_top=self._has_input_top
        )
        if self._input_bytes > MAX_MESSAGE_BYTES:
            self._input_bytes = self._input_logprobs.ByteSize()
            _check_size(self._input_bytes, "prompt_logprobs")

    def _delta(self, delta: Delta) -> Iterator[bytes]:
        complete = self._responses[delta.choice].complete
        complete.output_ids.extend(delta.token_ids)
        if self._is_streamed:
            yield self._chunk(delta)
        elif delta.logprobs:
            self._output_bytes[delta.choice] += add_output_logprobs(
                complete.output_logprobs, delta.logprobs, has_top=self._has_top
            )
            self._look_at_size(delta.choice)

    def _chunk(self, delta: Delta) -> bytes:
        response = pb.GenerateResponse()
        chunk = response.chunk
        chunk.index = delta.choice
        chunk.token_ids.extend(delta.token_ids)
        chunk.prompt_tokens = self._prompt_tokens
        chunk.completion_tokens = len(delta.token_ids)
        chunk.cached_tokens = self._cached_tokens
        self._add_input(chunk)
        if delta.logprobs:
            add_output_logprobs(chunk.output_logprobs, delta.logprobs, has_top=self._has_top)
        return _encoded(response, chunk)

    def _look_at_size(self, choice: int) -> None:
        """Of what will be told of a choice; it is measured only where it may be too large."""
        if self._input_bytes + self._output_bytes[choice] <= MAX_MESSAGE_BYTES:
            return
        complete = self._responses[choice].complete
        self._output_bytes[choice] = complete.ByteSize()
        if self._input_logprobs is not None:
            self._input_bytes = self._input_logprobs.ByteSize()
        _check_size(
            self._input_bytes + self._output_bytes[choice],
            "logprobs" if self._output_bytes[choice] > self._input_bytes else "prompt_logprobs",
        )

    def _finished(self, end: Finished) -> Iterator[bytes]:
        complete = self._responses[end.choice].complete
        complete.finish_reason = end.reason.value
        if isinstance(end.stop_reason, str):
            complete.matched_stop_str = end.stop_reason
        elif end.stop_reason is not None:
            complete.matched_token_id = end.stop_reason
        self._unfinished.discard(end.choice)
        yield from self._completes([end.choice])

    def _completes(self, ended: list[int]) -> list[bytes]:
        """The messages that tell the ends of these choices, or of all, once they have ended."""
        if not self._is_streamed:
            ended = [] if self._unfinished else [*range(len(self._responses))]
        return [self._complete(choice) for choice in ended]

    def _complete(self, choice: int) -> bytes:
        response = self._responses[choice]
        complete = response.complete
        complete.prompt_tokens = self._prompt_tokens
        complete.completion_tokens = len(complete.output_ids)
        complete.cached_tokens = self._cached_tokens
        self._add_input(complete)
        return _encoded(response, complete)

    def _add_input(self, told: pb.GenerateStreamChunk | pb.GenerateComplete) -> None:
        """The prompt's log-probabilities, once for each choice."""
        if self._input_logprobs is not None and told.index in self._without_input:
            self._without_input.discard(told.index)
            told.input_logprobs.CopyFrom(self._input_logprobs)


def _encoded(
    response: pb.GenerateResponse, told: pb.GenerateStreamChunk | pb.GenerateComplete
) -> bytes:
    encoded = response.SerializeToString()
    if len(encoded) > MAX_MESSAGE_BYTES:
        sizes = {
            "logprobs": told.output_logprobs.ByteSize(),
            "prompt_logprobs": told.input_logprobs.ByteSize(),
        }
        sizes["max_tokens"] = len(encoded) - sum(sizes.values())
        _check_size(len(encoded), max(sizes, key=sizes.__getitem__))
    return encoded


def _check_size(num_bytes: int, field: str) -> None:
    if num_bytes > MAX_MESSAGE_BYTES:
        raise InvalidRequest(
            f"The answer is a message of {num_bytes} bytes or more, and at most "
            f"{MAX_MESSAGE_BYTES} are sent: ask for fewer log-probabilities or tokens, or with "
            "`stream` for the log-probabilities of the output.",
            field,
        )
