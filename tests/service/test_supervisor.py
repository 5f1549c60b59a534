"""Who replaces an engine that is gone or hangs, with engines in this process."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Callable
from contextlib import asynccontextmanager

import pytest

from cadenza.policies.blame import Culprit
from cadenza.service import supervisor as supervisor_module
from cadenza.service.engine_client import EngineClient
from cadenza.service.errors import EngineUnavailable, GenerationFailed
from cadenza.service.request import GenerationRequest
from cadenza.service.supervisor import Supervisor
from cadenza.service.watchdog import HEARTBEAT_S, HOOK_S, LOADING_S, Watchdog
from cadenza.wire.messages import (
    Decision,
    EngineConfig,
    Failed,
    FaultCount,
    Ready,
    Start,
    Step,
)

from .fake_engine import FakeEngine


class FakeProcess:
    """An engine as the supervisor knows processes."""

    def __init__(self, engine: FakeEngine, connection: socket.socket) -> None:
        self.engine = engine
        self.connection = connection
        self.culprit: Culprit | None = None
        self.is_stopped = self.was_ended_by_others = False
        self.was_killed = False
        self._exited = asyncio.Event()

    @property
    def hook_under_way(self) -> str | None:
        return self.culprit and self.culprit.hook

    async def wait(self) -> int:
        await self._exited.wait()
        return -signal.SIGKILL

    async def kill(self, grace_s: float = 0.0) -> int:
        self.was_killed = not self._exited.is_set()
        self.die()
        return await self.wait()

    def die(self) -> None:
        self.engine.die()
        self._exited.set()


@asynccontextmanager
async def supervised(
    front, *, prepare: Callable[[FakeEngine], None], num_failures: int = 0, **options
):
    """A supervisor at work, and all processes that it had, the first without a handle.

    So many of the starts fail at first.
    """
    failures = iter(range(num_failures))
    first = FakeProcess(front.engine, socket.socket())
    processes = [first]

    def start() -> FakeProcess:
        if next(failures, None) is not None:
            raise OSError(errno.EMFILE, "Too many open files")
        ours, theirs = socket.socketpair()
        before = front.engine
        front.engine = FakeEngine(
            before.reply,
            vocab_size=before.vocab_size,
            eos=before.eos,
            max_model_len=before.max_model_len,
        )
        processes.append(FakeProcess(front.engine, ours))
        attached = asyncio.ensure_future(front.engine.attach(theirs))
        engine = front.engine
        attached.add_done_callback(lambda _: prepare(engine))
        return processes[-1]

    metrics = front.generator.metrics
    supervisor = Supervisor(
        front.client, first, lambda: EngineConfig(model="again"), metrics, start=start, **options
    )
    running = asyncio.ensure_future(supervisor.run())
    try:
        yield processes, running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        first.connection.close()


def becomes_ready(engine: FakeEngine) -> None:
    engine.become_ready()


async def serves(front) -> None:
    serving = asyncio.Event()
    front.client.watch_serving(lambda is_serving: serving.set() if is_serving else None)
    async with asyncio.timeout(10):
        await serving.wait()


def test_an_engine_that_dies_is_replaced_and_requests_notice_a_pause(run, open_front):
    async def main():
        async with (
            open_front(recovers=True) as front,
            supervised(front, prepare=becomes_ready) as (processes, _),
        ):
            front.engine.auto = False
            generation = await front.generator.submit(GenerationRequest(text="x", max_tokens=3))
            await front.step()
            processes[0].die()
            assert [batch async for batch in generation]

            assert [message for message in front.engine.received if isinstance(message, Start)] == [
                Start(EngineConfig(model="again", num_blocks=front.client.limits.num_blocks))
            ]
            assert not processes[0].was_killed
            assert front.generator.metrics.engine_restarts == 1
            assert front.generator.metrics.engine_pause_s > 0

    run(main())


def test_an_engine_that_closes_its_connection_or_talks_nonsense_is_ended(run, open_front):
    async def main():
        async with (
            open_front(recovers=True) as front,
            supervised(front, prepare=becomes_ready) as (processes, _),
        ):
            for spoil in (
                lambda: front.engine.die(),
                lambda: front.engine.send(Failed("out of memory")),
                lambda: front.engine._transport.write(b"\xff\xff\xff\xff"),
            ):
                spoil()
                await serves(front)
                assert processes[-2].was_killed
            assert front.generator.metrics.engine_restarts == 3

    run(main())


def test_too_many_deaths_within_a_minute_are_the_end(run, open_front):
    async def main():
        now_s = 100.0
        async with (
            open_front(recovers=True) as front,
            supervised(front, prepare=becomes_ready, max_restarts=2, clock=lambda: now_s) as (
                processes,
                running,
            ),
        ):
            for now_s in (100.0, 110.0, 165.0, 171.0):  # noqa: B007 - the clock reads it
                processes[-1].die()
                await serves(front)
            front.engine.auto = False
            generation = await front.generator.submit(GenerationRequest(text="x"))
            now_s = 172.0
            processes[-1].die()
            await running
            with pytest.raises(GenerationFailed, match="gives up") as caught:
                [batch async for batch in generation]
            assert caught.value.retryable
            assert "2 restarts within 60 s" in front.client.failure
            assert front.generator.metrics.engine_restarts == 4

    run(main())


def test_an_engine_that_cannot_load_at_all_is_not_tried_again(run):
    """Who serves is told by the client's failure, and needs no exception beside it."""

    class Refused:
        async def ready(self) -> None:
            raise EngineUnavailable("the weight 'x' is missing")

    run(Supervisor(Refused(), None, EngineConfig, None).run())


def test_an_engine_that_cannot_load_again_uses_the_budget_up(run, open_front):
    def fails(engine: FakeEngine) -> None:
        engine.send(Failed("no memory"))

    async def main():
        async with (
            open_front(recovers=True) as front,
            supervised(front, prepare=fails) as (processes, running),
        ):
            processes[0].die()
            await running
            assert "5 restarts" in front.client.failure
            assert len(processes) == 6

    run(main())


def test_engines_that_take_long_to_fail_use_it_up_as_well(run, open_front):
    now_s = 0.0

    def fails(engine: FakeEngine) -> None:
        nonlocal now_s
        now_s += 30.0
        engine.send(Failed("no memory"))

    async def main():
        async with (
            open_front(recovers=True) as front,
            supervised(front, prepare=fails, clock=lambda: now_s) as (processes, running),
        ):
            processes[0].die()
            async with asyncio.timeout(10):
                await running
            assert "5 restarts" in front.client.failure
            assert len(processes) == 6

    run(main())


@pytest.mark.parametrize("num_failures", [1, 2])
def test_a_process_that_cannot_be_started_is_tried_again(
    run, open_front, monkeypatch, num_failures
):
    """As when all descriptors are taken for the moment."""
    monkeypatch.setattr(supervisor_module, "_RETRY_S", 0.0)

    async def main():
        async with (
            open_front(recovers=True) as front,
            supervised(front, prepare=becomes_ready, max_restarts=2, num_failures=num_failures) as (
                processes,
                running,
            ),
        ):
            front.engine.auto = False
            generation = await front.generator.submit(GenerationRequest(text="x", max_tokens=1))
            processes[0].die()
            if num_failures == 1:
                assert [batch async for batch in generation]
                return
            await running
            with pytest.raises(GenerationFailed, match="gives up") as caught:
                [batch async for batch in generation]
            assert caught.value.retryable

    run(main())


@pytest.mark.parametrize(
    ("culprit", "is_stopped", "blamed"),
    [
        (Culprit("edf", "order_admissions", 1.0), False, True),
        (Culprit("edf", "order_admissions", 1.0), True, False),
        (Culprit("fcfs", "order_admissions", 1.0), False, False),
        (None, False, False),
    ],
    ids=["policy", "stopped-in-a-hook", "default-policy", "no-hook"],
)
def test_a_policy_is_blamed_for_a_death_in_its_hook(run, open_front, culprit, is_stopped, blamed):
    async def main():
        async with (
            open_front(recovers=True) as front,
            supervised(front, prepare=becomes_ready) as (processes, _),
        ):
            processes[0].culprit, processes[0].is_stopped = culprit, is_stopped
            processes[0].die()
            await serves(front)
            counts = (FaultCount("edf", "order_admissions", 1, True),) if blamed else ()
            assert front.client.totals.policy_faults == counts

    run(main())


def test_who_is_found_in_a_hook_when_others_end_the_engine_is_blamed_the_second_time(
    run, open_front
):
    """As the system does when memory runs out, whoever has taken it."""
    edf, other = (Culprit(name, "order_admissions", 1.0) for name in ("edf", "hrrn"))

    async def main():
        async with (
            open_front(recovers=True) as front,
            supervised(front, prepare=becomes_ready, max_restarts=9) as (processes, _),
        ):
            for culprit in (edf, None, edf, other, edf, edf):
                assert front.client.totals.policy_faults == ()
                processes[-1].culprit, processes[-1].was_ended_by_others = culprit, True
                processes[-1].die()
                await serves(front)
            blamed = (FaultCount("edf", "order_admissions", 1, True),)
            assert front.client.totals.policy_faults == blamed

    run(main())


class Watched:
    """What a watchdog sees of a client, under a test's control."""

    def __init__(self) -> None:
        self.num_heard = 0
        self.is_serving = self.is_busy = True
        self.patience_s = 0.0
        self.limits: Ready | None = None
        self.culprit: Culprit | None = None
        self.now_s = 0.0
        client: EngineClient = self  # type: ignore[assignment]
        self.dog = Watchdog(client, lambda: self.culprit, clock=lambda: self.now_s)

    def wait(self, seconds: float, tick_s: float = 0.1) -> float | None:
        """How long it took to find the engine hung; None: it did not."""
        for tick in range(round(seconds / tick_s)):
            self.now_s += tick_s
            if self.dog.look():
                return (tick + 1) * tick_s
        return None


def test_silence_counts_only_while_there_is_work():
    watched = Watched()
    watched.is_busy = False
    assert watched.wait(60) is None
    watched.is_busy = True
    assert watched.wait(HEARTBEAT_S - 0.2) is None
    watched.num_heard += 1
    assert watched.wait(60) == pytest.approx(HEARTBEAT_S + 0.2)


def test_a_long_step_that_was_announced_is_no_hang():
    watched = Watched()
    watched.patience_s = 30.0
    assert watched.wait(29) is None
    assert watched.wait(2) is not None


def test_a_policys_hook_has_a_second():
    watched = Watched()
    watched.culprit = Culprit("edf", "order_admissions", 0.0)
    assert watched.wait(60) == pytest.approx(HOOK_S + 0.1)


def test_a_hook_that_was_called_after_a_long_pass_has_its_second_too():
    watched = Watched()
    watched.patience_s = 10.0
    assert watched.wait(8) is None
    watched.culprit = Culprit("edf", "order_admissions", watched.now_s)
    assert watched.wait(0.9) is None
    assert watched.wait(0.3) is not None


def test_time_that_this_process_did_not_get_is_nobodys_silence():
    watched = Watched()
    assert watched.wait(72, tick_s=3.0) is None


def test_an_engine_may_load_for_long_but_not_in_silence():
    watched = Watched()
    watched.is_serving = watched.is_busy = False
    for _ in range(20):
        assert watched.wait(LOADING_S / 2) is None
        watched.num_heard += 1
    assert watched.wait(2 * LOADING_S) is not None


def test_what_the_engine_allows_for_its_next_pass_is_heard(run, open_front):
    async def main():
        async with open_front(recovers=True) as front:
            told = asyncio.Event()
            front.client.watch_decisions(lambda _: told.set())
            decision = Decision("arrived", 1, 1, 1.0)
            front.engine.send(Step(step_id=1, decisions=(decision,), patience_s=42.0))
            await told.wait()
            assert front.client.patience_s == 42.0

    run(main())
