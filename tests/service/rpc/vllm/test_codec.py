"""What log-probabilities take in a message is known before it is encoded."""

from __future__ import annotations

import pytest

pytest.importorskip("smg_grpc_proto")

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from cadenza.service.events import PositionLogprobs, TokenLogprob
from cadenza.service.rpc.vllm.codec import add_input_logprobs, add_output_logprobs


@pytest.mark.parametrize("num_top", [0, 1, 20])
@pytest.mark.parametrize("token_id", [0, 2**32 - 1])
def test_no_message_grows_by_more_than_is_said(num_top, token_id):
    token = TokenLogprob(token_id=token_id, text="", utf8=b"", logprob=-1.5)
    position = PositionLogprobs(sampled=token, top=[token] * num_top)
    complete = pb.GenerateComplete(output_ids=[token_id] * 300)
    has_top = num_top > 0
    most = add_output_logprobs(complete.output_logprobs, [position] * 300, has_top=has_top)
    assert complete.ByteSize() - 40 <= most  # what stands before each field but once
    told = pb.InputLogProbs()
    most = add_input_logprobs(told, [position] * 300, has_top=has_top)
    assert told.ByteSize() - 40 <= most
