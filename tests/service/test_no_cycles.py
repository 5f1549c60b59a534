"""What a request was made of is freed when it is over, and does not wait for the collector."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from cadenza.service.request import GenerationRequest


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class TapThatLeadsBack:
    def __init__(self, generation):
        self._generation = generation

    @property
    def way(self):
        return None

    def take_plain(self, token):
        return self._generation.is_over

    def told(self, tokens):
        pass

    def take(self, token, text):
        return self._generation.is_over


def tap_that_leads_back(generation):
    generation.tap(lambda *_: TapThatLeadsBack(generation))


def test_a_generation_is_freed_when_it_is_left(run, open_front):
    async def main():
        async with open_front() as front:
            front.says("hello")
            generation = await front.generator.submit(GenerationRequest(text="x", n=2))
            tap_that_leads_back(generation)
            async with generation:
                async for _ in generation:
                    pass
            left = [weakref.ref(generation), weakref.ref(generation._timer)]
            del generation
            await asyncio.sleep(0)

            assert [each() for each in left] == [None, None]

    run(main())


def test_so_is_one_that_is_left_before_it_has_a_seat(run, open_front):
    async def main():
        async with open_front() as front:
            front.engine.auto = False
            generation = await front.generator.submit(GenerationRequest(text="x"))
            tap_that_leads_back(generation)
            async with generation:
                pass
            left = weakref.ref(generation)
            del generation
            await asyncio.sleep(0)

            assert left() is None

    run(main())
