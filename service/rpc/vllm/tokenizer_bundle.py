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
from tokenizers import processors

from cadenza.service.tokenizer import Tokenizer

_CHUNK_BYTES = 64 * 1024


class TokenizerBundle:
    """A zip of what transformers and its likes read, made when it is first asked for."""

    def __init__(self) -> None:
        self._made: bytes | None = None
        self._making = asyncio.Lock()

    async def chunks(self, tokenizer: Tokenizer) -> Iterator[bytes]:
        """The messages that tell the one `tokenizer`; the last has the digest of the whole."""
        async with self._making:
            if self._made is None:
                self._made = await asyncio.to_thread(zipped, tokenizer)
        return _chunks(self._made)


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
        "tokenizer.json": _opening(tokenizer).to_str(),
        "tokenizer_config.json": json.dumps(config),
    }


def _opening(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """The backend, as one that itself opens a text with what the model wants (BOS)."""
    backend, prefix = tokenizer.backend, tokenizer.prefix
    if not prefix or backend.post_processor is not None:
        return backend
    twin = tokenizers.Tokenizer.from_str(backend.to_str())
    names = tokenizer.names(prefix)
    twin.post_processor = processors.TemplateProcessing(
        single=[*names, "$A"], special_tokens=[*zip(names, prefix, strict=True)]
    )
    return twin


def _chunks(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _CHUNK_BYTES):
        chunk = pb.GetTokenizerChunk(data=data[start : start + _CHUNK_BYTES])
        if start + _CHUNK_BYTES >= len(data):
            chunk.sha256 = sha256(data).hexdigest()
        yield chunk.SerializeToString()
