"""The tokenizer that a gateway is given encodes and renders as the service does."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import zipfile
from hashlib import sha256

import pytest
import tokenizers

pytest.importorskip("smg_grpc_proto")

from smg_grpc_proto.generated import common_pb2

from cadenza.service.chat_template import ChatTemplate
from cadenza.service.rpc.vllm import tokenizer_bundle
from cadenza.service.rpc.vllm.tokenizer_bundle import zipped
from cadenza.service.tokenizer import Tokenizer, load_tokenizer
from tests.service.byte_tokenizer import TEMPLATE, make_tokenizer
from tests.service.waiting import until

TEXT = "hello wall, <|im_end|> \u6f22\u5b57 \U0001f600"


def unzipped(data: bytes) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def opening(template: ChatTemplate | None) -> Tokenizer:
    """A tokenizer whose texts begin with a token."""
    backend = make_tokenizer().backend
    return Tokenizer(backend, template, [backend.token_to_id("<|end|>")])


async def told(stub) -> list[common_pb2.GetTokenizerChunk]:
    return [chunk async for chunk in stub.GetTokenizer(common_pb2.GetTokenizerRequest())]


async def test_it_is_told_in_chunks_and_the_last_has_the_digest(serve_vllm, monkeypatch):
    monkeypatch.setattr(tokenizer_bundle, "_CHUNK_BYTES", 100)
    async with serve_vllm() as served:
        first, second = await asyncio.gather(*(told(served.stub) for _ in range(2)))
        whole = b"".join(chunk.data for chunk in first)

        assert first == second
        assert whole == zipped(served.front.tokenizer)
        assert {len(chunk.data) for chunk in first[:-1]} == {100}
        digests = [chunk.sha256 for chunk in first]
        assert digests == [""] * (len(first) - 1) + [sha256(whole).hexdigest()]


async def test_it_is_made_once_whoever_leaves(serve_vllm, monkeypatch):
    made = []
    may_end = threading.Event()

    def slow(tokenizer):
        made.append(tokenizer)
        assert may_end.wait(10)
        return zipped(tokenizer)

    monkeypatch.setattr(tokenizer_bundle, "zipped", slow)
    async with serve_vllm() as served:
        try:
            for _ in range(3):
                call = served.stub.GetTokenizer(common_pb2.GetTokenizerRequest())
                reading = asyncio.ensure_future(call.read())
                await until(lambda: bool(made))
                call.cancel()
                await asyncio.wait([reading])
        finally:
            may_end.set()

        assert await told(served.stub) == await told(served.stub)
        assert len(made) == 1


def test_the_same_tokenizer_makes_the_same_bytes():
    assert zipped(make_tokenizer()) == zipped(make_tokenizer())


def hostile() -> Tokenizer:
    """One with tokens that look like the JSON that is told, and a prefix with a quote."""
    backend = make_tokenizer().backend
    backend.add_tokens(['"post_processor":null', '{"post_processor":null}'])
    backend.add_special_tokens(['<"\\é>'])
    return Tokenizer(backend, None, [backend.token_to_id('<"\\é>')])


@pytest.mark.parametrize("tokenizer", [make_tokenizer(), opening(None), hostile()])
def test_what_reads_it_encodes_a_text_as_we_do(tokenizer):
    read = tokenizers.Tokenizer.from_str(unzipped(zipped(tokenizer))["tokenizer.json"])

    assert read.encode(TEXT).ids == tokenizer.encode_text(TEXT)
    assert tokenizer.backend.post_processor is None  # ours is left as it is


def test_the_template_and_the_tokens_that_it_knows_are_told():
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    config = json.loads(
        unzipped(zipped(opening(ChatTemplate(TEMPLATE, tokens))))["tokenizer_config.json"]
    )

    assert config == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": TEMPLATE,
        **tokens,
    }


def test_a_folder_of_what_was_told_is_the_same_tokenizer(tmp_path):
    tokenizer = opening(ChatTemplate(TEMPLATE))
    for name, content in unzipped(zipped(tokenizer)).items():
        (tmp_path / name).write_text(content)
    read = load_tokenizer(tmp_path)
    messages = [{"role": "user", "content": TEXT}]

    assert read.encode_text(TEXT) == tokenizer.encode_text(TEXT)
    assert read.encode_messages(messages, max_chars=999) == tokenizer.encode_messages(
        messages, max_chars=999
    )
