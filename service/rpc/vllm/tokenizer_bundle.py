"""The tokenizer as files, for gateways that encode prompts and decode answers themselves."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import Iterator
from hashlib import sha256

import tokenizers
from smg_grpc_proto.generated import common_pb2 as pb
from tokenizers import models, processors

from cadenza.service.tokenizer import Tokenizer

_CHUNK_BYTES = 64 * 1024
_PROCESSOR = "post_processor"


class TokenizerBundle:
    """A zip of what transformers and its likes read, made when it is first asked for."""

    def __init__(self) -> None:
        self._making: asyncio.Task[bytes] | None = None

    async def chunks(self, tokenizer: Tokenizer) -> Iterator[bytes]:
        """The messages that tell the one `tokenizer`; the last has the digest of the whole."""
        if self._making is None:
            self._making = asyncio.create_task(asyncio.to_thread(zipped, tokenizer))
        # Who asked first may leave, and is not the only one who wants it
        return _chunks(await asyncio.shield(self._making))


def zipped(tokenizer: Tokenizer) -> bytes:
    """A zip archive, of the same bytes whenever it is made."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _files(tokenizer).items():
            # Without a time of its own
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return target.getvalue()


def _files(tokenizer: Tokenizer) -> dict[str, str]:
    config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if tokenizer.template is not None:
        config |= tokenizer.template.special_tokens
        config["chat_template"] = tokenizer.template.source
    return {
        "tokenizer.json": _opening(tokenizer),
        "tokenizer_config.json": json.dumps(config),
    }


def _opening(tokenizer: Tokenizer) -> str:
    """The backend as JSON, as one that itself opens a text with what the model wants (BOS)."""
    backend, prefix = tokenizer.backend, tokenizer.prefix
    whole: str = backend.to_str()
    if not prefix or backend.post_processor is not None:
        return whole
    names = tokenizer.names(prefix)
    small = tokenizers.Tokenizer(models.BPE())
    small.post_processor = processors.TemplateProcessing(
        single=[*names, "$A"], special_tokens=[*zip(names, prefix, strict=True)]
    )
    # Not by way of a twin: to read a large vocabulary holds up every thread for 0.9 s. Within a
    # string of JSON no quote is bare, so that this is the field itself.
    field = json.dumps({_PROCESSOR: json.loads(small.to_str())[_PROCESSOR]})[1:-1]
    before, found, after = whole.partition(f'"{_PROCESSOR}":null')
    assert found, "the field is there, and is null"
    return before + field + after


def _chunks(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _CHUNK_BYTES):
        chunk = pb.GetTokenizerChunk(data=data[start : start + _CHUNK_BYTES])
        if start + _CHUNK_BYTES >= len(data):
            chunk.sha256 = sha256(data).hexdigest()
        yield chunk.SerializeToString()
