"""All of it has ended before a failure is raised."""

from __future__ import annotations

import asyncio

import pytest

from cadenza.service.ended import all_ended


def test_a_failure_waits_for_the_others(run):
    ended: list[str] = []

    async def fail(name: str) -> None:
        ended.append(name)
        raise ValueError(name)

    async def last() -> None:
        while len(ended) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        ended.append("last")

    with pytest.raises(ValueError, match="first"):
        run(all_ended(fail("first"), last(), fail("second")))

    assert ended == ["first", "second", "last"]


def test_what_was_cancelled_has_not_failed(run):
    async def main():
        task = asyncio.create_task(asyncio.sleep(1000))
        task.cancel()
        await all_ended(task)

    run(main())
