"""Streams that outlive their calls: the same for Generate and Session."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from cadenza.service.errors import InvalidRequest
from cadenza.service.generator import Generator
from cadenza.service.request import GenerationRequest
from cadenza.service.resumable_stream import Reader, ResumableStream, StreamKey
from cadenza.service.resumption import stream_id
from cadenza.service.rpc import wire_format
from cadenza.service.rpc.codec import batches
from cadenza.service.rpc.relay import relay
from cadenza.service.rpc.transcripts import Transcript, transcript_of
from cadenza.service.stream_log import Place
from cadenza.service.stream_telling import Telling
from cadenza.v1 import generation_pb2 as pb


def is_resumable(message: pb.GenerateRequest | pb.Submit) -> bool:
    """Whether the client wants, or goes on with, a stream that can be resumed.

    Raises:
        InvalidRequest: it does not say which.
    """
    if message.HasField("resume") and not message.HasField("stream_id"):
        raise InvalidRequest("resume needs the stream_id that it goes on with", "stream_id")
    return message.HasField("stream_id")


def open_reader(
    generator: Generator,
    message: pb.GenerateRequest | pb.Submit,
    parse: Callable[[], GenerationRequest],
) -> Reader:
    """Begin the message's stream, or go on with it. `parse` makes the request of a new one.

    Raises:
        RequestError: neither can be done.
    """
    key = StreamKey(message.input.tenant, stream_id(message.stream_id))
    fingerprint = _fingerprint(message.input)
    resumption = generator.resumption
    if message.HasField("resume"):
        is_whole = message.input.WhichOneof("prompt") is not None
        place = _place(message.resume)
        return resumption.resume(key, "grpc", place, fingerprint if is_whole else None)
    request = parse()
    if request.echo:
        raise InvalidRequest("a stream that can be resumed does not echo its prompt", "echo")
    if request.prompt_logprobs is not None:
        raise InvalidRequest(
            "a stream that can be resumed tells no prompt_logprobs", "prompt_logprobs"
        )
    return resumption.open(key, "grpc", fingerprint, request, partial(_tell, generator, request))


def open_submitted(
    generator: Generator,
    submit: pb.Submit,
    parse: Callable[[], GenerationRequest],
    deadline_s: float | None,
) -> Reader:
    """As `open_reader`, for a Session, where each request is told its end.

    Raises:
        InvalidRequest: the client has been told it.
    """
    reader = open_reader(generator, submit, parse)
    if reader.is_at_end:
        reader.close()
        raise InvalidRequest("resume is behind the last event: nothing is left", "resume")
    if submit.HasField("resume"):
        if submit.HasField("timeout"):
            reader.stream.flow.set_deadline(deadline_s)
        reader.stream.flow.grant(submit.credit)
    return reader


def _place(resume: pb.Resume) -> Place:
    return Place(
        field="resume", number=resume.after_event or None, offsets=tuple(resume.tokens) or None
    )


def _fingerprint(message: pb.GenerationInput) -> bytes:
    return hashlib.sha256(message.SerializeToString(deterministic=True)).digest()


async def _tell(generator: Generator, request: GenerationRequest, stream: ResumableStream) -> None:
    """Generate for a stream, whoever reads it."""
    flow = stream.flow
    generation = await generator.submit(replace(request, credit=flow.first), flow)
    transcript = stream.memo = transcript_of(generation, request)
    telling = Telling(generation.num_choices, stream)
    async with aclosing(relay(generation, transcript=transcript)) as batches:
        async for batch in batches:
            for encoded in batch:
                body = wire_format.bare(encoded)
                event = pb.Event.FromString(body)  # a generation's may have become several
                if event.HasField("tokens"):
                    telling.count(event.tokens.choice, len(event.tokens.token_ids))
                telling.add(wire_format.numbered(body, telling.number))
            telling.tell()
    transcript.close()


def transcript_behind(reader: Reader | None) -> Transcript:
    """That of the reader's stream, which has finished."""
    assert reader is not None
    assert isinstance(reader.stream.memo, Transcript)
    return reader.stream.memo


async def read(reader: Reader, request_id: str = "") -> AsyncGenerator[list[bytes], None]:
    """What the reader reads, as encoded events of a request of this name, a long backlog in parts.

    Raises a `RequestError` in place of what is missing.
    """
    name = wire_format.encoded_name(request_id)
    async for entries in reader:
        for events in batches(wire_format.named(name, entry.data) for entry in entries):
            yield events
