"""Which tokens a generation's tap takes, and what is left to its reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from cadenza.service.events import Delta, Echo, Event, Finished, Preempted, PromptScored
from cadenza.service.generation import Generation
from cadenza.service.request import GenerationRequest
from cadenza.service.token_texts import TokenTexts


class Tap:
    """Asks `take` about every token of a choice, in either way."""

    def __init__(self, take: Callable[..., bool], choice: int, texts: TokenTexts) -> None:
        self._take = partial(take, choice)
        self._texts = texts

    @property
    def way(self) -> None:
        return None

    def take_plain(self, token: int) -> bool:
        text = self._texts[token]
        return text is not None and self._take(token, text)

    def told(self, tokens: Sequence[int]) -> None:
        pass

    def take(self, token: int, text: str) -> bool:
        return self._take(token, text)


class Reader:
    """Reads a generation to its end, and notes who had what."""

    def __init__(self, generation: Generation, take: Callable[..., bool] | None = None) -> None:
        self.tapped: list[tuple[int, int, str]] = []
        self.read: list[Event] = []
        self.told: list[Event] = []  # by the reader or the tap, in order
        self._generation = generation
        take = take or self._take
        generation.tap(partial(Tap, take))
        self.task = asyncio.create_task(self._iterate())

    def _take(self, choice: int, token_id: int, text: str) -> bool:
        self.tapped.append((choice, token_id, text))
        self.told.append(Delta(choice=choice, text=text, token_ids=(token_id,)))
        return True

    async def _iterate(self) -> None:
        async for batch in self._generation:
            self.read += batch
            self.told += batch

    @property
    def num_read(self) -> int:
        """Tokens that the tap has not had."""
        return num_tokens(self.read)


def num_tokens(batch: list[Event]) -> int:
    return sum(len(event.token_ids) for event in batch if isinstance(event, Delta))


def text_of(told: list[Event]) -> str:
    return "".join(event.text for event in told if isinstance(event, Delta))


def leave(*_: object) -> bool:
    return False


async def launched(front, **more: object) -> Generation:
    """A generation that waits for the engine's steps."""
    front.engine.auto = False
    more = {"text": "hello", "ignore_eos": True} | more
    request = GenerationRequest(**more)  # type: ignore[arg-type]
    generation: Generation = await front.generator.submit(request)
    await front.engine.until(lambda: bool(front.engine.waiting))
    return generation


@pytest.mark.parametrize("n", [1, 3])
def test_tokens_are_tapped_and_wake_nobody_short_of_the_end(run, open_front, n):
    async def main():
        async with open_front() as front:
            reader = Reader(await launched(front, n=n, max_tokens=4))
            await asyncio.sleep(0)
            await front.step()  # its admission is the reader's, and what comes with it
            told, reader.read = reader.num_read, []
            await front.step()
            await front.step()

            assert told == n
            assert [choice for choice, _, _ in reader.tapped] == 2 * list(range(n))
            assert all(text for _, _, text in reader.tapped)
            assert reader.read == []
            await front.step()
            await reader.task
            assert reader.num_read == n
            assert sum(isinstance(event, Finished) for event in reader.read) == n

    run(main())


@pytest.mark.parametrize("stop", [None, ["never said"]])
def test_taps_and_reader_together_have_the_text_of_a_reader_alone(run, open_front, stop):
    async def main():
        async with open_front() as front:
            front.says("čaj a káva")
            reader = Reader(await front.generator.submit(GenerationRequest(text="x", stop=stop)))
            await reader.task
            alone = Reader(
                await front.generator.submit(GenerationRequest(text="x", stop=stop)), leave
            )
            await alone.task

            assert reader.tapped
            assert not alone.tapped
            assert text_of(reader.told) == text_of(alone.told) == "čaj a káva"

    run(main())


def test_what_the_tap_leaves_is_the_readers(run, open_front):
    async def main():
        async with open_front() as front:
            reader = Reader(await launched(front, max_tokens=3), leave)
            await asyncio.sleep(0)
            for _ in range(3):
                await front.step()
            await reader.task

            assert reader.num_read == 3

    run(main())


def test_the_tap_takes_nothing_while_the_reader_is_elsewhere(run, open_front):
    async def main():
        async with open_front() as front:
            generation = await launched(front, max_tokens=9)
            tapped: list[int] = []
            generation.tap(partial(Tap, lambda choice, *_: bool(tapped.append(choice))))
            await front.step()
            await front.step()
            batch = await anext(generation)

            assert tapped == []
            assert num_tokens(batch) == 2
            generation.cancel()

    run(main())


def test_log_probabilities_are_the_readers(run, open_front):
    async def main():
        async with open_front() as front:
            reader = Reader(await launched(front, max_tokens=3, logprobs=1))
            await asyncio.sleep(0)
            for _ in range(3):
                await front.step()
            await reader.task

            assert reader.tapped == []
            told = [event for event in reader.read if isinstance(event, Delta)]
            assert sum(len(event.logprobs) for event in told) == 3

    run(main())


def test_a_reader_that_gave_up_waiting_has_all_when_it_comes_back(run, open_front):
    async def main():
        async with open_front() as front:
            generation = await launched(front, max_tokens=9)
            tapped: list[int] = []
            generation.tap(partial(Tap, lambda choice, *_: not tapped.append(choice)))
            await front.step()
            await anext(generation)
            waiting = asyncio.create_task(anext(generation))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            await front.step(2)

            assert tapped == []
            assert num_tokens(await anext(generation)) == 2
            generation.cancel()

    run(main())


def test_a_notice_comes_before_the_tokens_after_it(run, open_front):
    async def main():
        async with open_front() as front:
            reader = Reader(await launched(front, max_tokens=9))
            await asyncio.sleep(0)
            await front.step()
            front.engine.preempted = [*front.engine.running]
            front.engine.step(2)  # two frames at once: the reader runs after both
            await front.step()

            notice = reader.told.index(Preempted(choice=0))
            assert num_tokens(reader.told[:notice]) == 2
            assert num_tokens(reader.told[notice:]) == 2
            reader.task.cancel()

    run(main())


@pytest.mark.parametrize(
    ("wish", "kind"),
    [({"echo": True}, Echo), ({"logprobs": 1, "prompt_logprobs": 0}, PromptScored)],
)
def test_what_comes_before_the_first_token_is_never_overtaken(run, open_front, wish, kind):
    async def main():
        async with open_front() as front:
            reader = Reader(await launched(front, max_tokens=2, **wish))
            await asyncio.sleep(0)
            await front.step()
            await front.step()
            await reader.task

            kinds = [type(event) for event in reader.read]
            assert kinds.index(kind) < kinds.index(Delta)
            assert reader.num_read + len(reader.tapped) == 2

    run(main())


def test_what_the_tap_raises_is_raised_to_the_reader_alone(run, open_front):
    def broken(*_: object) -> bool:
        raise ValueError("broken")

    async def main():
        async with open_front() as front:
            reader = Reader(await launched(front, max_tokens=9), broken)
            other = Reader(await launched(front, max_tokens=3))
            await asyncio.sleep(0)
            for _ in range(3):
                await front.step()

            with pytest.raises(ValueError, match="broken"):
                await reader.task
            await other.task
            assert len(other.tapped) + other.num_read == 3

    run(main())
