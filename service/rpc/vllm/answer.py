"""One request's answer in vLLM's messages: a chunk a delta, and at each choice's end the whole."""

from __future__ import annotations

from collections.abc import Iterator

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from cadenza.service.errors import InvalidRequest
from cadenza.service.events import Admitted, Delta, Event, Finished, PromptScored
from cadenza.service.generation import Generation
from cadenza.service.rpc.connections import MAX_MESSAGE_BYTES
from cadenza.service.rpc.vllm.codec import add_input_logprobs, add_output_logprobs

_ABORTED = "abort"


class Answer:
    """Makes a generation's messages of its events, or of parts of these.

    A streamed answer tells new tokens in chunks, and every choice's end in a `complete` of its own,
    with all its token ids. The log-probabilities are in the chunks, the prompt's in each choice's
    first. An answer that is not streamed is one `complete` a choice, in order, once all have ended.
    """

    def __init__(self, generation: Generation, request: pb.GenerateRequest) -> None:
        """Begin before the generation is read, or cancelled."""
        params = request.sampling_params
        self._is_streamed = request.stream
        self._has_top = params.logprobs > 0
        self._has_input_top = params.prompt_logprobs > 0
        self._prompt_tokens = generation.prompt_tokens
        self._cached_tokens = 0
        choices = range(generation.num_choices)
        self._completes = [pb.GenerateComplete(index=choice) for choice in choices]
        self._unfinished = set(choices)
        self._input_logprobs: pb.InputLogProbs | None = None  # where they are wanted, and known
        self._without_input = set(choices)  # that have not told them

    @property
    def is_over(self) -> bool:
        """Whether every choice has ended."""
        return not self._unfinished

    def told(self, event: Event) -> Iterator[bytes]:
        """The messages that an event, or a part of one, makes.

        Raises:
            InvalidRequest: one would be larger than clients accept.
        """
        match event:
            case Admitted():
                self._cached_tokens = event.cached_tokens
            case PromptScored():
                if self._input_logprobs is None:
                    self._input_logprobs = pb.InputLogProbs()
                add_input_logprobs(
                    self._input_logprobs, event.logprobs, has_top=self._has_input_top
                )
            case Delta():
                yield from self._delta(event)
            case Finished():
                yield from self._finished(event)

    def aborted(self) -> Iterator[bytes]:
        """The ends of all choices that have not ended."""
        for choice in sorted(self._unfinished):
            self._completes[choice].finish_reason = _ABORTED
        unfinished, self._unfinished = self._unfinished, set()
        for choice in sorted(unfinished) if self._is_streamed else range(len(self._completes)):
            yield self._complete(choice)

    def _delta(self, delta: Delta) -> Iterator[bytes]:
        if not delta.token_ids:
            return  # a text alone, of which nothing is told
        complete = self._completes[delta.choice]
        complete.output_ids.extend(delta.token_ids)
        if not self._is_streamed:
            if delta.logprobs:
                add_output_logprobs(complete.output_logprobs, delta.logprobs, has_top=self._has_top)
            return
        chunk = pb.GenerateStreamChunk(
            index=delta.choice,
            token_ids=delta.token_ids,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=len(delta.token_ids),
            cached_tokens=self._cached_tokens,
            input_logprobs=self._take_input(delta.choice),
        )
        if delta.logprobs:
            add_output_logprobs(chunk.output_logprobs, delta.logprobs, has_top=self._has_top)
        yield _encoded(pb.GenerateResponse(chunk=chunk))

    def _finished(self, end: Finished) -> Iterator[bytes]:
        complete = self._completes[end.choice]
        complete.finish_reason = end.reason.value
        if isinstance(end.stop_reason, str):
            complete.matched_stop_str = end.stop_reason
        elif end.stop_reason is not None:
            complete.matched_token_id = end.stop_reason
        self._unfinished.discard(end.choice)
        if self._is_streamed:
            yield self._complete(end.choice)
        elif self.is_over:
            for choice in range(len(self._completes)):
                yield self._complete(choice)

    def _complete(self, choice: int) -> bytes:
        complete = self._completes[choice]
        complete.prompt_tokens = self._prompt_tokens
        complete.completion_tokens = len(complete.output_ids)
        complete.cached_tokens = self._cached_tokens
        if (scored := self._take_input(choice)) is not None:
            complete.input_logprobs.CopyFrom(scored)
        return _encoded(pb.GenerateResponse(complete=complete))

    def _take_input(self, choice: int) -> pb.InputLogProbs | None:
        """The prompt's log-probabilities, once for each choice."""
        if self._input_logprobs is None or choice not in self._without_input:
            return None
        self._without_input.discard(choice)
        return self._input_logprobs


def _encoded(response: pb.GenerateResponse) -> bytes:
    size = response.ByteSize()
    if size > MAX_MESSAGE_BYTES:
        raise InvalidRequest(
            f"The answer is a message of {size} bytes, and at most {MAX_MESSAGE_BYTES} are sent: "
            "ask for fewer log-probabilities, or with `stream` for those of the output.",
            "logprobs" if response.HasField("complete") else "prompt_logprobs",
        )
    return response.SerializeToString()
