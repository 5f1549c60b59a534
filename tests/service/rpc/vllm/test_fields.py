"""Every field of vLLM's request: it becomes one of ours, or is refused by its name."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

pytest.importorskip("smg_grpc_proto")

from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from cadenza.service.errors import InvalidRequest
from cadenza.service.limits import Limits
from cadenza.service.request import GenerationRequest
from cadenza.service.rpc.vllm.codec import to_request
from cadenza.service.rpc.vllm.fields import SERVED as SERVED_NOW
from cadenza.service.rpc.vllm.unsupported import refuse_unsupported
from tests.service.rpc.vllm.asking import request_of, wrong_fields

SERVED: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 7,
    "min_p": 0.125,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "repetition_penalty": 1.5,
    "max_tokens": 5,
    "min_tokens": 2,
    "stop": ["x"],
    "stop_token_ids": [3],
    "skip_special_tokens": True,
    "ignore_eos": True,
    "n": 3,
    "logprobs": 1,
    "prompt_logprobs": 2,
    "seed": -5,
    "include_stop_str_in_output": True,
    "logit_bias": {3: 1.5},
    "truncate_prompt_tokens": -1,
}
REFUSED: dict[str, Any] = {
    "grammar_from_first_token": True,
    "json_schema": "{}",
    "regex": "a*",
    "grammar": "root ::= 'a'",
    "structural_tag": "{}",
    "json_object": True,
    "choice": pb.ChoiceConstraint(choices=["a"]),
}
OF_TEXT = {"spaces_between_special_tokens"}  # of which nothing is told

REQUEST_REFUSED: dict[str, Any] = {
    "kv_transfer_params": pb.KvTransferParams(remote_port=1),
    "kv_transfer_params_json": '{"do_remote_prefill": true}',
    "mm_inputs": pb.MultimodalInputs(mm_hashes=["x"]),
    "extra_mm_inputs": [pb.MultimodalInputs()],
    "media_refs": pb.MediaRefs(items=[pb.MediaRef(modality=common_pb2.IMAGE, url="data:,")]),
    "data_parallel_rank": 1,
}
REQUEST_SERVED = {"request_id", "tokenized", "text", "sampling_params", "stream"}
NEUTRAL: list[dict[str, Any]] = [
    {"kv_transfer_params": pb.KvTransferParams()},
    {"kv_transfer_params_json": " {} "},
    {"mm_inputs": pb.MultimodalInputs()},
    {"media_refs": pb.MediaRefs()},
    {"data_parallel_rank": 0},
]


def test_nothing_is_left_out():
    assert SERVED.keys() | REFUSED.keys() | OF_TEXT == {
        field.name for field in pb.SamplingParams.DESCRIPTOR.fields
    }
    assert REQUEST_REFUSED.keys() | REQUEST_SERVED == {
        field.name for field in pb.GenerateRequest.DESCRIPTOR.fields
    }


@pytest.mark.parametrize(("field", "value"), SERVED.items())
def test_a_field_that_is_served_is_the_one_of_the_same_name(field, value):
    request = request_of(**{field: value})
    refuse_unsupported(request)

    assert getattr(to_request(request), field) == value


def test_what_is_not_set_is_the_default():
    request = request_of("hi")
    refuse_unsupported(request)

    assert to_request(request) == GenerationRequest(
        text="hi",
        top_k=0,
        min_p=0.0,
        min_tokens=0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        include_stop_str_in_output=False,
        skip_special_tokens=False,
        ignore_eos=False,
    )


def test_a_seed_of_minus_one_is_none():
    assert to_request(request_of(seed=-1)).seed is None


def test_a_zero_that_may_be_meant_is_kept():
    made = to_request(request_of(temperature=0.0, seed=0, logprobs=0, prompt_logprobs=0))

    assert (made.temperature, made.seed, made.logprobs, made.prompt_logprobs) == (0.0, 0, 0, 0)


@pytest.mark.parametrize(("field", "value"), REFUSED.items())
def test_a_field_of_the_sampling_that_is_not_served_is_refused(field, value):
    with pytest.raises(InvalidRequest, match=f"^{field} is not supported: ") as caught:
        refuse_unsupported(request_of(**{field: value}))

    assert caught.value.field == f"sampling_params.{field}"


@pytest.mark.parametrize(("field", "value"), REQUEST_REFUSED.items())
def test_a_field_of_the_request_that_is_not_served_is_refused(field, value):
    request = pb.GenerateRequest(text="hi", **{field: value})
    with pytest.raises(InvalidRequest, match=f"^{field} is not supported: ") as caught:
        refuse_unsupported(request)

    assert caught.value.field == field


@pytest.mark.parametrize(
    ("message", "field", "path"),
    [
        ("SamplingParams", "min_p", "sampling_params.min_p"),
        ("TokenizedInput", "input_ids", "tokenized.input_ids"),
        ("GenerateRequest", "stream", "stream"),
    ],
)
def test_a_field_that_only_a_later_package_has_is_not_ignored(monkeypatch, message, field, path):
    request = request_of(ids=[1], min_p=0.5)
    monkeypatch.setitem(SERVED_NOW, message, SERVED_NOW[message] - {field})
    with pytest.raises(InvalidRequest, match=f"^{field} is not supported: this version") as caught:
        refuse_unsupported(request)

    assert caught.value.field == path


@pytest.mark.parametrize("fields", NEUTRAL)
def test_what_changes_nothing_passes(fields):
    refuse_unsupported(pb.GenerateRequest(text="hi", **fields))


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        (request_of(temperature=-1.0), "sampling_params.temperature"),
        (request_of(top_p=float("nan")), "sampling_params.top_p"),
        (request_of(n=17), "sampling_params.n"),
        (request_of(logprobs=-1), "sampling_params.logprobs"),
        (request_of(regex="a"), "sampling_params.regex"),
        (request_of(max_tokens=0), "sampling_params.max_tokens"),
        (request_of(stop=["x"] * 5), "sampling_params.stop"),
        (request_of(logit_bias={-1: 1.0}), "sampling_params.logit_bias"),
        (request_of(None), "input"),
        (request_of(""), "input"),
        (request_of(ids=[]), "input"),
        (request_of(ids=[2**32 - 1]), "input"),
        (request_of(ids=[1] * 256), "input"),
        (pb.GenerateRequest(text="a", data_parallel_rank=3), "data_parallel_rank"),
        (pb.GenerateRequest(text="a", kv_transfer_params_json="[]"), "kv_transfer_params_json"),
    ],
)
async def test_a_client_is_told_which_field_is_wrong(serve_vllm, request_, path):
    async with serve_vllm() as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stub.Generate(request_).read()

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert wrong_fields(caught.value) == [path]


async def test_a_tenant_that_is_wrong_is_the_metadata_of_that_name(serve_vllm):
    async with serve_vllm(limits=Limits(max_tenant_chars=3)) as served:
        metadata = [("x-gateway-inference-fairness-id", "gold")]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stub.Generate(request_of(), metadata=metadata).read()

    assert wrong_fields(caught.value) == ["x-gateway-inference-fairness-id"]
