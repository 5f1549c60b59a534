"""Log-probabilities in bounded pieces: nothing is lost."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from cadenza.service.events import Delta, Finished, FinishReason, PositionLogprobs, TokenLogprob
from cadenza.service.http.answer import Answer
from cadenza.service.http.chat import Chat
from cadenza.service.http.completions import Completions
from cadenza.service.http.dialect import ChoiceState
from cadenza.service.http.logprobs import MAX_POSITIONS, bounded

HI = [{"role": "user", "content": "hi"}]
END = Finished(choice=0, reason=FinishReason.STOP, stop_reason=None, completion_tokens=1)


def delta(count: int, text: str = "text") -> Delta:
    token = TokenLogprob(5, "t", b"t", -0.5)
    position = PositionLogprobs(sampled=token, top=[token])
    return Delta(choice=0, text=text, token_ids=list(range(count)), logprobs=[position] * count)


@pytest.mark.parametrize("count", [1, 127, 128, 129, 256, 1000])
def test_a_batch_is_divided_without_loss(count):
    batch = [delta(count), delta(3, "more"), END]
    parts = list(bounded(batch))
    told = [event for part in parts for event in part]
    deltas = [event for event in told if isinstance(event, Delta)]

    assert all(parts)
    for part in parts:
        assert sum(len(event.logprobs) for event in part if event is not END) <= MAX_POSITIONS
    assert told[-1] is END
    assert "".join(event.text for event in deltas) == "textmore"
    assert [token for event in deltas for token in event.token_ids] == [*range(count), 0, 1, 2]
    assert sum(len(event.logprobs) for event in deltas) == count + 3


def test_a_batch_without_logprobs_stays_whole():
    plain = Delta(choice=0, text="x", token_ids=list(range(5000)))
    assert list(bounded([plain, END])) == [[plain, END]]


@pytest.mark.parametrize("dialect", [Chat(), Completions()])
def test_what_is_kept_in_pieces_reads_as_if_encoded_at_once(dialect):
    whole, parted = (ChoiceState(index=0, finished=END) for _ in range(2))
    positions = delta(300).logprobs
    dialect.keep_logprobs(whole, positions)
    for start in range(0, 300, 128):
        dialect.keep_logprobs(parted, positions[start : start + 128])
    told = [msgspec.json.decode(msgspec.json.encode(dialect.whole(c))) for c in (whole, parted)]

    assert told[0] == told[1]
    assert len(next(iter(told[0]["logprobs"].values()))) == 300


@pytest.mark.parametrize("dialect", [Chat(), Completions()])
def test_a_reader_that_lags_gets_bounded_events_and_lets_others_run(run, open_front, dialect):
    async def main():
        async with open_front(max_model_len=10_000) as front:
            front.engine.auto = False
            prompt = {"messages": HI, "logprobs": True, "top_logprobs": 2}
            if isinstance(dialect, Completions):
                prompt = {"prompt": "x", "logprobs": 2}
            call = dialect.parse({**prompt, "max_tokens": 2000, "ignore_eos": True})
            async with (await front.generator.submit_all(call.requests))[0] as generation:
                await front.engine.until(lambda: bool(front.engine.waiting))
                front.engine.step(2000)
                await front.told()
                assert generation.is_over
                turns = 0

                async def other():
                    nonlocal turns
                    while True:
                        turns += 1
                        await asyncio.sleep(0)

                task = asyncio.create_task(other())
                sizes = [
                    len(next(iter(choice["logprobs"].values())))
                    async for events in Answer(dialect, call, [generation]).chunks()
                    for event in events.split(b"\n\n")[:-1]
                    for choice in json.loads(event.removeprefix(b"data: "))["choices"]
                    if choice["logprobs"]
                ]
                task.cancel()

            assert sum(sizes) == 2000
            assert max(sizes) == MAX_POSITIONS
            assert turns >= 2000 // MAX_POSITIONS

    run(main())
