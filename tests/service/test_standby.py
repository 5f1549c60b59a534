"""The engine process in reserve, with processes that are none."""

from __future__ import annotations

import asyncio
import errno

import pytest

from cadenza.service import standby as standby_module
from cadenza.service.standby import Standby


class FakeProcess:
    def __init__(self) -> None:
        self.exit_status: int | None = None
        self.is_ended = False

    def end(self) -> None:
        self.is_ended = True


class Starts:
    """Starts processes, but for the first `num_failures`."""

    def __init__(self, num_failures: int = 0) -> None:
        self.started: list[FakeProcess] = []
        self._num_failures = num_failures

    def __call__(self) -> FakeProcess:
        if self._num_failures:
            self._num_failures -= 1
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        self.started.append(FakeProcess())
        return self.started[-1]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby_module, "AFTER_S", 0.0)


async def serves(standby: Standby) -> None:
    """An engine begins to serve, and the timer that this sets fires."""
    standby.note_serving(True)
    fired = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.0, fired.set_result, None)
    await fired


def test_there_is_one_in_reserve_once_an_engine_serves_and_it_is_taken_once(run):
    async def main():
        standby = Standby(starts := Starts())
        await serves(standby)
        await serves(standby)
        [reserve] = starts.started
        assert standby.take() is reserve
        assert standby.take() is starts.started[1]
        standby.end()
        assert not any(process.is_ended for process in starts.started)

    run(main())


def test_one_that_has_died_in_reserve_is_not_taken(run):
    async def main():
        standby = Standby(starts := Starts())
        await serves(standby)
        starts.started[0].exit_status = -9
        assert standby.take() is starts.started[1]
        assert starts.started[0].is_ended

    run(main())


def test_without_one_a_restart_begins_from_nothing(run):
    async def main():
        standby = Standby(starts := Starts(num_failures=1))
        await serves(standby)
        assert not starts.started
        assert standby.take() is starts.started[0]

    run(main())


def test_none_is_started_in_a_pause_or_after_the_end(run):
    async def main():
        standby = Standby(starts := Starts())
        standby.note_serving(True)
        standby.note_serving(False)
        await serves(Standby(Starts()))  # which began later, and has its own by now
        assert not starts.started
        await serves(standby)
        standby.end()
        assert starts.started[0].is_ended
        standby.end()

    run(main())
