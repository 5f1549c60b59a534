"""Prompts under a tokenizer that has more tokens than its model."""

from __future__ import annotations

import msgspec
import pytest

from cadenza.service.constraints import with_bad_words
from cadenza.service.encoder import Encoder
from cadenza.service.errors import InvalidRequest
from cadenza.service.limits import Limits
from cadenza.service.request import GenerationRequest
from cadenza.service.validation import check
from cadenza.wire.messages import Sampling

from .byte_tokenizer import make_tokenizer
from .entering import READY


@pytest.mark.parametrize("known", [1000, 5])
def test_a_token_that_the_model_does_not_know_is_refused_before_it_is_served(run, known: int):
    tokenizer = make_tokenizer()
    ready = msgspec.structs.replace(READY, vocab_size=known)
    checked = check(GenerationRequest(text="hello"), Limits(), ready)
    ids = tokenizer.encode_text("hello")
    assert 5 <= max(ids) < 1000

    async def encoded() -> list[int]:
        encoder = Encoder(tokenizer)
        try:
            return list(await encoder.prompt(checked, ready))
        finally:
            encoder.close()

    if known > max(ids):
        assert run(encoded()) == ids
    else:
        with pytest.raises(InvalidRequest, match=f"token {max(ids)}, but the model knows 5 alone"):
            run(encoded())


def test_bad_words_that_the_model_cannot_say_are_left_out():
    found = with_bad_words(Sampling(), [[1, 2], [7], [3, 5]], vocab_size=5)

    assert found.bad_words == ((1, 2),)
