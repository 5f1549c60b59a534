"""Several generations read as one: nothing that came before a failure is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from cadenza.service.errors import GenerationFailed
from cadenza.service.http.merge import merge


async def told(ready: asyncio.Event, *batches: Any) -> AsyncGenerator[Any, None]:
    """What a generation tells once it is `ready`; an exception ends it."""
    await ready.wait()
    for batch in batches:
        if isinstance(batch, Exception):
            raise batch
        yield batch


@pytest.mark.parametrize("failing", range(4))
def test_what_comes_together_with_a_failure_is_told_before_it(run, failing: int) -> None:
    async def main() -> None:
        ready = asyncio.Event()
        error = GenerationFailed("it broke", retryable=False)
        generations: list[Any] = [
            told(ready, error if index == failing else [index]) for index in range(4)
        ]
        seen: list[tuple[int, Any]] = []

        async def read() -> None:
            async with aclosing(merge(generations)) as batches:
                async for index, batch in batches:
                    seen.append((index, batch))

        asyncio.get_running_loop().call_soon(ready.set)
        with pytest.raises(GenerationFailed, match="it broke"):
            await read()

        assert seen == [(index, [index]) for index in range(4) if index != failing]

    run(main())


def test_batches_that_come_together_are_in_the_order_of_their_generations(run) -> None:
    async def main() -> None:
        ready = asyncio.Event()
        generations: list[Any] = [told(ready, [index], [-index]) for index in range(1, 9)]
        asyncio.get_running_loop().call_soon(ready.set)
        async with aclosing(merge(generations)) as batches:
            seen = [batch async for _, batch in batches]

        assert seen[:8] == [[index] for index in range(1, 9)]
        assert sorted(seen[8:]) == [[-index] for index in range(8, 0, -1)]

    run(main())
