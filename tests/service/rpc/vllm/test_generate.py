"""Generate as vLLM's clients know it: chunks, ends, aborts, deadlines."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

import grpc
import pytest

pytest.importorskip("smg_grpc_proto")

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from cadenza.service.errors import DeadlineExceeded
from cadenza.service.generation import Generation
from cadenza.service.rpc.vllm import answer
from cadenza.service.rpc.vllm.generate import generate
from cadenza.service.rpc.vllm.running import Run
from cadenza.wire.arrays import view_ids
from tests.service.rpc.vllm.asking import GENERATE, request_of, tell
from tests.service.waiting import until


async def test_a_streamed_answer_is_a_chunk_a_step_and_then_the_whole(serve_vllm):
    async with serve_vllm() as served:
        ids = [*served.front.tokenizer.encode_text("hey"), served.front.engine.eos]
        served.front.says("hey")
        told = await served.ask()

        assert told.code is grpc.StatusCode.OK
        assert told.ids() == ids
        assert [chunk.completion_tokens for chunk in told.chunks] == [
            len(chunk.token_ids) for chunk in told.chunks
        ]
        assert {(chunk.prompt_tokens, chunk.cached_tokens) for chunk in told.chunks} == {(2, 3)}
        assert told.completes == [
            pb.GenerateComplete(
                output_ids=ids,
                finish_reason="stop",
                prompt_tokens=2,
                completion_tokens=len(ids),
                cached_tokens=3,
            )
        ]


async def test_an_answer_that_is_not_streamed_is_one_message(serve_vllm):
    async with serve_vllm() as served:
        told = await served.ask(stream=False, max_tokens=4)

        assert told.chunks == []
        [complete] = told.completes
        assert (complete.finish_reason, complete.completion_tokens) == ("length", 4)
        assert len(complete.output_ids) == 4
        assert complete.WhichOneof("matched_stop") is None


async def test_a_prompt_may_be_tokens(serve_vllm):
    async with serve_vllm() as served:
        request = request_of(ids=[5, 6, 7], max_tokens=2)
        request.tokenized.original_text = "something else"
        told = await tell(served.stub.Generate(request))

        [submit] = served.front.engine.submits()
        assert view_ids(submit.prompt).tolist() == [5, 6, 7]
        assert told.completes[0].prompt_tokens == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_choices_are_told_apart(serve_vllm, stream):
    async with serve_vllm() as served:
        told = await served.ask(n=2, max_tokens=3, stream=stream)

        assert sorted(complete.index for complete in told.completes) == [0, 1]
        whole = {complete.index: list(complete.output_ids) for complete in told.completes}
        assert whole[0] != whole[1]
        assert [len(ids) for ids in whole.values()] == [3, 3]
        if stream:
            assert {choice: told.ids(choice) for choice in (0, 1)} == whole


async def test_a_stop_string_ends_a_choice_and_its_tokens_are_told(serve_vllm):
    async with serve_vllm() as served:
        served.front.says("one two three")
        told = await served.ask(stop=["two"])

        [complete] = told.completes
        assert complete.finish_reason == "stop"
        assert complete.matched_stop_str == "two"
        assert served.front.tokenizer.decode(told.ids()) == "one two"


async def test_a_stop_token_is_told(serve_vllm):
    async with serve_vllm() as served:
        served.front.says_tokens(1, 2, 3, 4)
        told = await served.ask(stop_token_ids=[3])

        [complete] = told.completes
        assert complete.finish_reason == "stop"
        assert complete.matched_token_id == 3
        assert told.ids() == [1, 2, 3]


@pytest.mark.parametrize("stream", [True, False])
async def test_log_probabilities_come_with_their_tokens(serve_vllm, stream):
    async with serve_vllm() as served:
        told = await served.ask(max_tokens=3, logprobs=2, stream=stream)

        [complete] = told.completes
        parts = [chunk.output_logprobs for chunk in told.chunks] or [complete.output_logprobs]
        ids = [token for part in parts for token in part.token_ids]
        assert ids == complete.output_ids
        assert [value for part in parts for value in part.token_logprobs] == [-0.5] * 3
        tops = [top for part in parts for top in part.top_logprobs]
        assert [list(top.token_ids) for top in tops] == [[0, 1]] * 3
        assert [list(top.values) for top in tops] == [[-0.25, float("-inf")]] * 3


async def test_without_alternatives_there_is_no_list_of_them(serve_vllm):
    async with serve_vllm() as served:
        told = await served.ask(max_tokens=2, logprobs=0, stream=False)

        logprobs = told.completes[0].output_logprobs
        assert len(logprobs.token_logprobs) == 2
        assert len(logprobs.top_logprobs) == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_the_prompts_log_probabilities_come_once_for_each_choice(serve_vllm, stream):
    async with serve_vllm() as served:
        told = await served.ask(ids=[5, 6, 7], n=2, max_tokens=2, prompt_logprobs=1, stream=stream)

        messages = told.chunks if stream else told.completes
        having = [each for each in messages if each.HasField("input_logprobs")]
        assert sorted(each.index for each in having) == [0, 1]
        for scored in (each.input_logprobs for each in having):
            assert list(scored.token_ids) == [5, 6, 7]
            assert not scored.token_logprobs[0].HasField("value")
            assert [each.value for each in scored.token_logprobs[1:]] == [-1.0, -2.0]
            assert [list(top.token_ids) for top in scored.top_logprobs] == [[], [0], [0]]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_prompt_alone_may_be_scored(serve_vllm, stream):
    async with serve_vllm() as served:
        told = await served.ask(ids=[5, 6], max_tokens=0, prompt_logprobs=0, stream=stream)

        assert told.chunks == []
        [complete] = told.completes
        assert (complete.finish_reason, complete.completion_tokens) == ("length", 0)
        assert list(complete.input_logprobs.token_ids) == [5, 6]


OF_OUTPUT = {"stream": False, "logprobs": 20, "max_tokens": 100}
OF_PROMPT = {"ids": [1] * 100, "prompt_logprobs": 20, "max_tokens": 1}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (OF_OUTPUT, "logprobs"),
        (OF_PROMPT, "prompt_logprobs"),
        (OF_PROMPT | {"stream": False}, "prompt_logprobs"),
        (OF_PROMPT | {"stream": False, "logprobs": 0}, "prompt_logprobs"),
    ],
)
async def test_a_message_that_clients_would_not_accept_is_refused(
    serve_vllm, monkeypatch, fields, named
):
    monkeypatch.setattr(answer, "MAX_MESSAGE_BYTES", 10_000)
    async with serve_vllm() as served:
        served.front.says("x" * 100)
        told = await served.ask(**fields)

        assert told.code is grpc.StatusCode.INVALID_ARGUMENT
        assert "ask for fewer log-probabilities" in told.details
        assert told.wrong == [f"sampling_params.{named}"]
        assert (told.chunks, told.completes) == ([], [])
        # The same is told in parts where it can be
        if named == "logprobs":
            assert (await served.ask(**fields | {"stream": True})).code is grpc.StatusCode.OK


async def test_an_answer_too_large_is_refused_as_soon_as_it_is_and_nothing_of_it_is_told(
    serve_vllm, monkeypatch
):
    monkeypatch.setattr(answer, "MAX_MESSAGE_BYTES", 10_000)
    async with serve_vllm() as served:
        engine = served.front.engine
        engine.auto = False
        engine.reply = lambda submit: [1] * (1 if submit.choice == 0 else 200)
        asking = asyncio.create_task(served.ask(**OF_OUTPUT | {"n": 2, "max_tokens": 200}))
        await engine.until(lambda: len(engine.waiting) == 2)
        while not asking.done():
            await served.front.step()
        told = await asking

        assert told.wrong == ["sampling_params.logprobs"]
        assert told.completes == []
        assert engine.generated < 150


async def test_of_an_answer_whose_ids_alone_are_too_large_nothing_is_told(serve_vllm, monkeypatch):
    monkeypatch.setattr(answer, "MAX_MESSAGE_BYTES", 100)
    async with serve_vllm() as served:
        served.front.engine.reply = lambda submit: [1] * (1 if submit.choice == 0 else 200)
        told = await served.ask(stream=False, n=2, max_tokens=200)

        assert told.wrong == ["sampling_params.max_tokens"]
        assert told.completes == []


async def test_what_just_fits_is_told(serve_vllm, monkeypatch):
    async with serve_vllm() as served:
        served.front.says("x" * 100)
        fields = OF_OUTPUT | OF_PROMPT | {"max_tokens": 100, "stream": False}
        [complete] = (await served.ask(**fields)).completes
        size = len(pb.GenerateResponse(complete=complete).SerializeToString())
        for most, code in ((size, "OK"), (size - 1, "INVALID_ARGUMENT")):
            monkeypatch.setattr(answer, "MAX_MESSAGE_BYTES", most)
            assert (await served.ask(**fields)).code.name == code


@pytest.mark.parametrize("stream", [True, False])
async def test_abort_ends_the_stream_with_what_there_is(serve_vllm, stream):
    async with serve_vllm() as served:
        served.front.engine.auto = False
        asking = asyncio.create_task(served.ask(n=2, stream=stream))
        await served.front.engine.until(lambda: len(served.front.engine.waiting) == 2)
        await served.front.step(2)
        await served.stub.Abort(pb.AbortRequest(request_ids=["nobody", "a"]))
        told = await asking

        assert told.code is grpc.StatusCode.OK
        assert [complete.finish_reason for complete in told.completes] == ["abort"] * 2
        assert [len(complete.output_ids) for complete in told.completes] == [2, 2]
        await served.front.engine.until(lambda: not served.front.engine.running)


async def test_what_ended_before_an_abort_keeps_its_end(serve_vllm):
    async with serve_vllm() as served:
        engine = served.front.engine
        engine.auto = False
        engine.reply = lambda submit: [1] * (1 if submit.choice == 0 else 9)
        asking = asyncio.create_task(served.ask(n=2, stream=False))
        await engine.until(lambda: len(engine.waiting) == 2)
        await served.front.step(3)
        await served.stub.Abort(pb.AbortRequest(request_ids=["a"]))
        told = await asking

        assert [each.finish_reason for each in told.completes] == ["stop", "abort"]


@dataclass
class Slow:
    """A client that reads nothing until it is let."""

    may_read: asyncio.Event = field(default_factory=asyncio.Event)
    told: list[pb.GenerateResponse] = field(default_factory=list)

    async def write(self, message: bytes) -> None:
        await self.may_read.wait()
        self.told.append(pb.GenerateResponse.FromString(message))

    def ids(self, choice: int) -> list[int]:
        chunks = [each.chunk for each in self.told if each.chunk.index == choice]
        return [token for chunk in chunks for token in chunk.token_ids]

    def ends(self) -> dict[int, tuple[str, int]]:
        """Reasons and lengths by choice."""
        completes = [each.complete for each in self.told if each.HasField("complete")]
        return {each.index: (each.finish_reason, len(each.output_ids)) for each in completes}


async def test_an_abort_leaves_what_has_ended_as_it_is_if_read_or_not(open_front):
    async with open_front() as front:
        client, run = Slow(), Run()
        request = request_of(max_tokens=9)
        reading = asyncio.create_task(generate(front.generator, request, run, client.write, {}))
        await until(lambda: front.engine.generated == 9)
        await front.told()
        run.abort()
        client.may_read.set()
        await reading

        assert client.ends() == {0: ("length", 9)}
        assert len(client.ids(0)) == 9


async def test_an_abort_leaves_a_failure_as_it_is(open_front):
    async with open_front() as front:
        front.engine.auto = False
        client, run = Slow(), Run()
        request = request_of(max_tokens=9)
        reading = asyncio.create_task(generate(front.generator, request, run, client.write, {}))
        await front.engine.until(lambda: bool(front.engine.waiting))
        await front.step(2)
        front.engine.expire(*front.engine.running)
        await front.step()
        run.abort()
        client.may_read.set()
        with pytest.raises(DeadlineExceeded):
            await reading
        assert len(client.ids(0)) == 2


async def test_what_was_computed_before_an_abort_is_told(open_front):
    async with open_front() as front:
        front.engine.auto = False
        front.engine.reply = lambda submit: [1] * (3 if submit.choice == 0 else 99)
        client, run = Slow(), Run()
        request = request_of(n=2, max_tokens=99)
        reading = asyncio.create_task(generate(front.generator, request, run, client.write, {}))
        await front.engine.until(lambda: len(front.engine.waiting) == 2)
        await front.step(6)
        run.abort()
        client.may_read.set()
        await reading

        assert client.ends() == {0: ("stop", 4), 1: ("abort", 6)}
        assert (len(client.ids(0)), len(client.ids(1))) == (4, 6)


@pytest.mark.parametrize(("n", "most"), [(2, 2), (2**32 - 1, 16)])
async def test_what_is_aborted_while_the_model_loads_ends_at_once(serve_vllm, n, most):
    async with serve_vllm(ready=False) as served:
        asking = asyncio.create_task(served.ask(n=n))
        await until(lambda: served.front.generator.num_in_flight == 1)
        await served.stub.Abort(pb.AbortRequest(request_ids=["a"]))
        told = await asking
        served.front.engine.become_ready()
        await served.front.client.ready()
        await served.ask(request_id="b", max_tokens=1)

        assert [each.finish_reason for each in told.completes] == ["abort"] * most
        assert len(served.front.engine.submits()) == 1


async def test_what_is_aborted_while_its_prompt_is_encoded_ends_at_once(serve_vllm, monkeypatch):
    async with serve_vllm() as served:
        encoding = asyncio.Event()

        async def encode(*_):
            encoding.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(served.front.generator._encoder, "prompt", encode)
        asking = asyncio.create_task(served.ask())
        await encoding.wait()
        await served.stub.Abort(pb.AbortRequest(request_ids=["a"]))

        assert [each.finish_reason for each in (await asking).completes] == ["abort"]
        assert served.front.engine.submits() == []


async def test_a_deadline_passes_while_the_model_loads(serve_vllm):
    async with serve_vllm(ready=False) as served:
        call = served.stub.Generate(request_of(), metadata=[("x-request-timeout-ms", "20")])
        told = await tell(call)

        assert told.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert served.front.generator.num_in_flight == 0


async def test_two_requests_may_have_one_name_and_are_aborted_together(serve_vllm):
    async with serve_vllm() as served:
        engine = served.front.engine
        engine.auto = False
        asking = [asyncio.create_task(served.ask()) for _ in range(2)]
        other = asyncio.create_task(served.ask(request_id="b", max_tokens=2))
        unnamed = asyncio.create_task(served.ask(request_id="", max_tokens=2))
        await engine.until(lambda: len(engine.waiting) == 4)
        await served.front.step()
        await served.stub.Abort(pb.AbortRequest(request_ids=["a", ""]))
        ended = await asyncio.gather(*asking)
        await served.front.step()

        assert [told.completes[0].finish_reason for told in ended] == ["abort"] * 2
        for told in (await other, await unnamed):
            assert told.completes[0].finish_reason == "length"


async def test_each_is_aborted_once_however_often_it_is_named(serve_vllm, monkeypatch):
    num_cancels = Counter[str]()
    aborted = []
    cancel, abort = Generation.cancel, Run.abort

    def counting(generation):
        num_cancels[generation.id] += 1
        cancel(generation)

    async with serve_vllm() as served:
        served.front.engine.auto = False
        asking = [asyncio.create_task(served.ask()) for _ in range(3)]
        await served.front.engine.until(lambda: len(served.front.engine.waiting) == 3)
        with monkeypatch.context() as patched:
            patched.setattr(Generation, "cancel", counting)
            patched.setattr(Run, "abort", lambda run: (aborted.append(run), abort(run)))
            for _ in range(2):
                await served.stub.Abort(pb.AbortRequest(request_ids=["a"] * 4096))
            await asyncio.gather(*asking)

        assert len(aborted) <= 6
        # And once as its reader leaves it
        assert [*num_cancels.values()] == [2, 2, 2]


async def test_no_more_are_aborted_at_once_than_take_no_time(serve_vllm):
    async with serve_vllm() as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stub.Abort(pb.AbortRequest(request_ids=["a"] * 5000))

        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_name_is_free_again_when_its_request_has_ended(serve_vllm):
    async with serve_vllm() as served:
        for _ in range(2):
            assert (await served.ask(max_tokens=1)).code is grpc.StatusCode.OK
            await served.stub.Abort(pb.AbortRequest(request_ids=["a"]))


async def test_the_calls_deadline_is_the_engines(serve_vllm):
    async with serve_vllm() as served:
        before_s = time.monotonic()
        await tell(served.stub.Generate(request_of(max_tokens=1), timeout=100))

        [submit] = served.front.engine.submits()
        assert before_s + 99 < submit.deadline_s < time.monotonic() + 101


async def test_metadata_say_whom_a_request_counts_for_and_how_soon_it_is_wanted(serve_vllm):
    metadata = [
        ("x-gateway-inference-fairness-id", "gold"),
        ("x-slo-ttft-ms", "500"),
        ("x-slo-tpot-ms", "20"),
        ("x-request-timeout-ms", "1000000"),
    ]
    async with serve_vllm() as served:
        generate = served.stub.Generate
        await tell(generate(request_of(max_tokens=1), metadata=metadata))
        before_s = time.monotonic()
        await tell(generate(request_of(max_tokens=1), metadata=metadata, timeout=100))

        first, second = served.front.engine.submits()
        assert (first.tenant, first.ttft_target_s, first.tpot_target_s) == ("gold", 0.5, 0.02)
        # The earlier of two ends
        assert second.deadline_s < before_s + 200 < first.deadline_s


async def test_metadata_that_are_wrong_are_named(serve_vllm):
    async with serve_vllm() as served:
        call = served.stub.Generate(request_of(), metadata=[("x-slo-ttft-ms", "soon")])
        told = await tell(call)

        assert told.code is grpc.StatusCode.INVALID_ARGUMENT
        assert told.details.startswith("x-slo-ttft-ms must be a number of milliseconds")


async def test_a_deadline_ends_the_call_behind_what_came_before(serve_vllm):
    async with serve_vllm() as served:
        engine = served.front.engine
        engine.auto = False
        asking = asyncio.create_task(tell(served.stub.Generate(request_of(), timeout=100)))
        await engine.until(lambda: bool(engine.waiting))
        await served.front.step(2)
        engine.expire(*engine.running)
        engine.step()
        told = await asking

        assert told.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert len(told.ids()) == 2
        assert told.completes == []


async def test_leaving_frees_the_request(serve_vllm):
    async with serve_vllm() as served:
        engine = served.front.engine
        engine.auto = False
        call = served.stub.Generate(request_of())
        await engine.until(lambda: bool(engine.waiting))
        engine.step()
        await call.read()
        call.cancel()
        await engine.until(lambda: bool(engine.cancels()))
        await until(lambda: served.front.generator.is_idle)


async def test_a_request_that_fails_is_told_as_a_status(serve_vllm):
    async with serve_vllm() as served:
        engine = served.front.engine
        engine.auto = False
        asking = asyncio.create_task(served.ask())
        await engine.until(lambda: bool(engine.waiting))
        await served.front.step()
        engine.die()
        told = await asking

        assert told.code is grpc.StatusCode.UNAVAILABLE
        assert len(told.ids()) == 1


async def test_bytes_that_are_no_message_are_the_clients_fault(serve_vllm):
    async with serve_vllm() as served:
        call = served.channel.unary_stream(GENERATE)(b"\xff\xff")
        told = await tell(call)

        assert told.code is grpc.StatusCode.INVALID_ARGUMENT
        assert told.details == "the bytes are not a vllm.grpc.engine.GenerateRequest"


async def test_a_server_that_stops_waits_for_these_calls_as_well(serve_vllm):
    async with serve_vllm() as served:
        served.front.engine.auto = False
        asking = asyncio.create_task(served.ask(max_tokens=2))
        await served.front.engine.until(lambda: bool(served.front.engine.waiting))
        stopping = asyncio.create_task(served.server.stop(10))
        refused = await served.ask(request_id="late")
        served.front.engine.step(2)

        assert refused.code is grpc.StatusCode.UNAVAILABLE
        assert (await asking).code is grpc.StatusCode.OK
        await stopping
