"""What goes past the readers of a stream's requests is what they would have told."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.service.generation import Generation
from cadenza.service.request import GenerationRequest
from cadenza.service.rpc.outbox import Outbox
from cadenza.service.rpc.relay import relay
from cadenza.service.rpc.taps import Taps
from cadenza.service.rpc.transcripts import Transcript, transcript_of
from cadenza.service.token_texts import TokenTexts
from cadenza.v1 import generation_pb2 as pb

from ..byte_tokenizer import make_tokenizer

TEXT = "hello, \N{TIGER FACE} čaj! What stops here? Nothing; it goes on"
NUM_STEPS = 1 + len(TEXT.encode())

# Of one stream, in which they go on side by side
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "another": {"max_tokens": 11},  # within a character
    "stopped": {"stop": ["stops here"]},
    "included": {"stop": ["čaj", "never"], "include_stop_str_in_output": True},
    "never": {"stop": ["never said"]},
    "scored": {"logprobs": 1},
    "several": {"n": 3, "max_tokens": 30},
    "echoed": {"echo": True, "max_tokens": 20},
    "controls": {"skip_special_tokens": False},
    "prompt": {"logprobs": 0, "prompt_logprobs": 0, "max_tokens": 25},
}
NUM_ROWS = sum(wishes.get("n", 1) for wishes in REQUESTS.values())
PREEMPTED = (5, 8, 30)  # after these steps every other row loses its seat until the next

TEXTS = TokenTexts(make_tokenizer().backend, skip_special_tokens=True)
VOCAB_SIZE = make_tokenizer().backend.get_vocab_size()
NAMES = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=9)


def tap_of(taps: Taps, name: str, choice: int = 0) -> Any:
    opened: list[Callable[..., Any]] = []
    taps.open(SimpleNamespace(tap=opened.append), name, None)  # type: ignore[arg-type]
    return opened[0](choice, TEXTS)


def written(outbox: Outbox) -> bytes:
    outbox.close()
    return b"".join(asyncio.run(outbox.take()))


@given(NAMES, st.data())
def test_a_steps_tokens_are_events_as_protobuf_encodes_them(names, data):
    """Taken together where there are several, and one by one."""
    tokens = [data.draw(st.integers(0, VOCAB_SIZE + 3)) for _ in names]
    plain = [token < VOCAB_SIZE and TEXTS[token] is not None for token in tokens]
    events = [
        pb.Event(request_id=name, tokens=pb.Tokens(text=TEXTS[token], token_ids=[token]))
        for name, token, is_plain in zip(names, tokens, plain, strict=True)
        if is_plain
    ]
    message = pb.SessionResponse(events=events).SerializeToString(deterministic=True)
    for at_once in (True, False):
        outbox = Outbox(1 << 20)
        taps = Taps(outbox)
        opened = [tap_of(taps, name) for name in names]
        if at_once and len(names) > 1:
            [way] = {tap.way for tap in opened}
            assert way.together(opened)(tokens) == all(plain)
        if not (at_once and len(names) > 1 and all(plain)):
            pairs = zip(opened, tokens, strict=True)
            taken = [tap.take_plain(token) for tap, token in pairs]
            assert taken == plain
        assert written(outbox) == message


@pytest.mark.parametrize("choice", [0, 1])
def test_a_choices_tokens_are_events_whether_plain_or_not(choice):
    for token in range(VOCAB_SIZE):
        outbox = Outbox(1 << 20)
        tap = tap_of(Taps(outbox), "r", choice)
        if (text := TEXTS[token]) is not None:
            assert tap.take_plain(token)
            assert tap.take(token, text)
            tokens = pb.Tokens(choice=choice, text=text, token_ids=[token])
            events = 2 * [pb.Event(request_id="r", tokens=tokens)]
            assert written(outbox) == pb.SessionResponse(events=events).SerializeToString()
        else:
            assert not tap.take_plain(token)


def test_without_room_all_of_a_step_is_left():
    outbox = Outbox(1)
    outbox.put([b"x"])
    tap = tap_of(Taps(outbox), "r")

    assert not tap.way.together([tap, tap])([65, 66])
    assert not tap.take_plain(65)
    assert not tap.take(65, "b")
    assert written(outbox) == b"x"


@pytest.mark.parametrize("limit", [1 << 20, 200])
async def test_taps_tell_what_readers_alone_tell(open_front, limit):
    """Of requests of every kind in one stream, some of which are preempted and resumed."""
    async with open_front() as front:
        front.says(TEXT)
        alone = await told(front, None, Outbox(1 << 20))
        outbox = Outbox(limit)
        tapped = await told(front, Taps(outbox), outbox)
        assert front.is_clean()

    assert [*tapped] == [*REQUESTS]
    for name in REQUESTS:
        assert tapped[name] == alone[name], name


async def told(front, taps: Taps | None, outbox: Outbox) -> dict[str, Any]:
    """What each request's client is told, with what is kept of it; its events not cut by steps."""
    front.engine.auto = False
    events: list[pb.Event] = []
    transcripts: dict[str, Transcript] = {}

    async def write(message: bytes) -> None:
        events.extend(pb.SessionResponse.FromString(message).events)

    async def tell(name: str, generation: Generation) -> None:
        async with aclosing(relay(generation, name, taps, transcripts[name])) as batches:
            async for batch in batches:
                await outbox.room()
                outbox.put(batch)

    writing = asyncio.create_task(outbox.write_to(write))
    async with asyncio.TaskGroup() as telling:
        for name, wishes in REQUESTS.items():  # one after another, as their rows are told apart so
            request = GenerationRequest(text="x", **{"max_tokens": NUM_STEPS} | wishes)
            generation = await front.generator.submit(request)
            transcripts[name] = transcript_of(generation, request)
            telling.create_task(tell(name, generation))
        await front.engine.until(lambda: len(front.engine.waiting) == NUM_ROWS)
        for step in range(NUM_STEPS):
            if step in PREEMPTED:
                front.engine.preempted = [*front.engine.running][::2]
            if step - 1 in PREEMPTED:
                front.engine.admitted_again = [*front.engine.running][::2]
            await front.step()
    outbox.close()
    await writing
    return {
        name: (
            folded([event for event in events if event.request_id == name]),
            transcripts[name].former(0),
        )
        for name in REQUESTS
    }


def folded(events: list[pb.Event]) -> dict[int, list[Any]]:
    """By choice, -1 for what is of none: tokens joined that nothing comes between."""
    told: dict[int, list[Any]] = defaultdict(list)
    for event in events:
        kind = event.WhichOneof("event")
        body = getattr(event, kind)
        if kind == "notice":
            body = getattr(body, body.WhichOneof("notice"))
        of_choice = told[getattr(body, "choice", -1)]
        if kind == "tokens" and of_choice and isinstance(of_choice[-1], pb.Tokens):
            of_choice[-1].text += body.text
            of_choice[-1].token_ids.extend(body.token_ids)
            of_choice[-1].logprobs.extend(body.logprobs)
        elif kind != "accepted":  # which has a name made by chance
            of_choice.append(body)
    return told
