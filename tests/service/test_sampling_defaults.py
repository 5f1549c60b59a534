"""What a client gets that says nothing of sampling: as the model's makers advise."""

from __future__ import annotations

import msgspec

from cadenza.service.limits import Limits
from cadenza.service.request import GenerationRequest
from cadenza.service.validation import check
from cadenza.wire.messages import Sampling, SamplingDefaults

from .entering import READY

ADVISED = SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95, min_p=0.1, repetition_penalty=1.1)


def sampling(defaults: SamplingDefaults, **fields: object) -> Sampling:
    engine = msgspec.structs.replace(READY, sampling=defaults)
    request = GenerationRequest(text="x", seed=1, **fields)  # type: ignore[arg-type]
    return check(request, Limits(), engine).sampling


def test_what_is_not_said_is_as_the_model_advises():
    expected = Sampling(
        temperature=0.6, top_k=20, top_p=0.95, min_p=0.1, repetition_penalty=1.1, seed=1
    )
    assert sampling(ADVISED) == expected
    assert sampling(SamplingDefaults()) == Sampling(seed=1)


def test_what_a_client_says_goes_before_it():
    said = {"temperature": 1.0, "top_k": -1, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}

    assert sampling(ADVISED, **said) == Sampling(seed=1)
