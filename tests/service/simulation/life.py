"""One life of the service, from its start to its end, as a seed has it.

The front, its supervisor, its calls, the engine's loop, the scheduler and the policies are the real
ones. Processes, sockets, gRPC, the model and time are not.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import signal
from collections.abc import Sequence
from typing import cast
from unittest import mock

import grpc

from cadenza.service.engine_process import EngineProcess
from cadenza.service.front import Front
from cadenza.service.front_config import FrontConfig
from cadenza.service.generator import Generator
from cadenza.service.limits import Limits, ResumptionLimits
from cadenza.service.supervisor import MAX_RESTARTS
from cadenza.v1 import generation_pb2 as pb
from cadenza.wire.messages import EngineConfig, PolicyConfig

from .asked import Told
from .calls import STALL_S, Call, MemoryServer
from .clients import GRACE_S, MAX_STREAM_BYTES, Client, Sleeper
from .drawing import draw_clients, tokenizer
from .engine import Engine, Loading
from .loop import SeededLoop
from .mischief import CHOSEN, KINDS, LIBRARY, Guard, Mischief
from .stand_ins import stand_in_for_processes

_ENOUGH_S = 300.0  # in which everything has to end
_DRAIN_S = 60.0  # what was announced for a long pass, and as much again
_LEAVE_S = 12.0  # what the service takes to stop once nobody wants anything


class Life:
    """Everything of one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.loop = SeededLoop(chance)
        self._began_s = self.loop.now_s
        self.is_calm = False
        self.is_draining = False
        self.engine: Engine  # that serves, or loads
        self.engines: list[Engine] = []  # and those before, and in reserve
        self.has_jumped = False
        self.outcome: str | None = None  # what the service says of its end
        self._num_lethal = 0  # faults that an engine does not survive
        self._is_cut_short = False  # by a second signal
        self._protected: set[Told] = set()
        self._server: MemoryServer | None = None
        self._is_ready = asyncio.Event()
        self._draw()

    def _draw(self) -> None:
        """What shall go wrong."""
        chance = self.chance
        self._is_doomed = chance.random() < 0.04
        has_poison = not self._is_doomed and chance.random() < 0.12
        kind = chance.choice(KINDS) if chance.random() < 0.5 else None
        if kind == "hangs" and (has_poison or self._is_doomed):
            kind = None
        self._mischief = kind and Mischief(self.loop, kind, lambda: self.engine)
        self._num_deaths = 0 if has_poison or self._is_doomed else chance.choice([0, 0, 1, 1, 2])
        self._troubles = [
            trouble
            for trouble, share in ((self._freeze, 0.2), (self._jump, 0.3), (self._end, 0.35))
            if chance.random() < share
        ]
        self._troubles += [self._kill] * self._num_deaths
        if self._is_doomed:
            self._troubles.append(self._kill)
        chance.shuffle(self._troubles)
        self._has_long_passes = chance.random() < 0.08
        self._clients = draw_clients(self, has_poison=has_poison)

    @property
    def elapsed_s(self) -> float:
        """Of its own time."""
        return self.loop.now_s - self._began_s

    @property
    def fingerprint(self) -> str:
        """Another for another life: of all that was told to anybody, and of every turn."""
        told = [each for client in self._clients for each in client.told]
        heard = [(each.tokens, each.texts, each.ends, str(each.failed)) for each in told]
        life = self.loop.num_turns, self.loop.now_s, self.outcome, heard
        return hashlib.sha256(repr(life).encode()).hexdigest()

    # clients.World

    def generate(self, request: pb.GenerateRequest, timeout_s: float | None = None) -> Call:
        assert self._server is not None
        return self._server.generate(request, timeout_s)

    def session(self) -> Call:
        assert self._server is not None
        return self._server.session()

    def judge_refusal(self, told: Told, code: int, *, is_retryable: bool) -> None:
        status = _STATUSES[code]
        if told.asked.is_poisoned and status is grpc.StatusCode.INTERNAL:
            return
        if told.asked.timeout_s is not None and status is grpc.StatusCode.DEADLINE_EXCEEDED:
            return
        if self.has_jumped and status in _TOO_LATE:
            return  # it looks as if the client had not read, not come back, or not asked in time
        assert is_retryable, f"{status}: {told}"
        assert self.is_draining or self._is_doomed, f"{status} without a reason: {told}"
        is_excused = self._is_cut_short or self._is_doomed or told.is_end_lost
        assert is_excused or told not in self._protected, (
            "a request is dropped that could have ended"
        )

    # troubles

    def _kill(self) -> None:
        engine = self.engine
        if not engine.is_alive or (self._is_doomed and engine is not self.engines[0]):
            return
        self._num_lethal += not engine.is_hanging  # else it does not survive anyway
        # One that is idle may hang for ever, and would not have the service give up
        if not self._is_doomed and self.chance.random() < 0.3:
            engine.hang()
        else:
            engine.be_killed(unsent=self.chance.choice([0.0, 0.0, self.chance.random(), 1.0]))

    def _freeze(self) -> None:
        self.engine.freeze(3.0 * self.chance.random())

    def _jump(self) -> None:
        self.has_jumped = True
        self.loop.jump(self.chance.choice([0.05, 1.0, 3.0, 100.0]))

    def _end(self) -> None:
        """The service is told to stop, and clients take what is theirs."""
        self.is_calm = self.is_draining = True
        self._has_long_passes = False  # or the time of the drain may not be enough
        for engine in self.engines:
            engine.has_long_passes = False
        self._protected = {
            told
            for client in self._clients
            if not isinstance(client, Sleeper)
            for told in client.told
            if told.is_accepted and not (told.is_over or told.asked.is_poisoned)
            if told.asked.timeout_s is None
        }
        self.loop.signal(signal.SIGTERM)
        if self.chance.random() < 0.3:
            self.loop.call_later(0.3 * self.chance.random(), self._end_now)

    def _end_now(self) -> None:
        self._is_cut_short = True
        self.loop.signal(signal.SIGTERM)

    # the life

    def run(self) -> None:
        """Raises AssertionError, or whatever the service lets through."""
        stand_ins = stand_in_for_processes(
            self.loop, self.start_engine, self._note_taken, self._open_server
        )
        with stand_ins, mock.patch.object(Mischief, "present", self._mischief):
            self.loop.run(self._main())

    async def _main(self) -> None:
        profile = LIBRARY.profile(self._chosen, {})
        policies = PolicyConfig(chosen=self._chosen)
        config = FrontConfig(
            host="127.0.0.1",
            port=0,
            grpc_port=0,
            model_names=["tiny"],
            engine=EngineConfig(model="m", policies=policies),
            limits=Limits(resumption=ResumptionLimits(grace_s=GRACE_S, max_bytes=MAX_STREAM_BYTES)),
            profile=profile,
            library=LIBRARY,
            shutdown_timeout_s=_DRAIN_S,
        )
        self.engine = self.start_engine()
        front = Front(
            config,
            tokenizer(),
            self.engine,  # type: ignore[arg-type]
            on_progress=lambda _: None,
            on_ready=lambda *_: self._is_ready.set(),
        )
        serving = asyncio.ensure_future(front.run())
        await self._is_ready.wait()
        troubling = asyncio.ensure_future(self._trouble())
        living = [asyncio.ensure_future(self._live(client)) for client in self._clients]
        try:
            async with asyncio.timeout(_ENOUGH_S) as limit:
                await self._until_over(living, troubling, serving)
        except TimeoutError as error:
            if not limit.expired():
                raise
            late = [
                each for each, task in zip(self._clients, living, strict=True) if task.cancelled()
            ]
            wait = [f"{type(each).__name__} {each.told}" for each in late]
            raise AssertionError(f"for ever {wait or 'the service'} goes on") from error
        self._check_end()

    async def _until_over(
        self,
        living: Sequence[asyncio.Future[None]],
        troubling: asyncio.Future[None],
        serving: asyncio.Future[str | None],
    ) -> None:
        await asyncio.gather(*living)
        await troubling
        if not (self.is_draining or self._is_doomed):
            await self._rest()
            self._end()
        ended_s = self.loop.now_s
        self.outcome = await serving
        assert self.loop.now_s - ended_s < _LEAVE_S or self.has_jumped, "it takes long to stop"

    async def _live(self, client: Client) -> None:
        await asyncio.sleep(0.3 * self.chance.random())
        await client.run()
        for told in client.told:
            told.check()

    async def _trouble(self) -> None:
        for trouble in self._troubles:
            await asyncio.sleep(0.4 * self.chance.random())
            if not self.is_draining or trouble == self._kill:
                trouble()
        await asyncio.sleep(0.5)
        self.is_calm = True

    async def _rest(self) -> None:
        """When nobody wants anything any more, nothing is left of anybody."""
        generator = self._generator
        await asyncio.sleep(max(GRACE_S, STALL_S) + 0.1)
        engine = generator.engine  # another goes on, or will once this one is judged
        while not engine.is_serving or engine.is_busy:  # noqa: ASYNC110 - judged tick by tick
            await asyncio.sleep(0.5)
        assert not self._server or not self._server.num_calls, "a call does not end"
        assert generator.is_idle, "something is left in the front"
        assert not generator.num_in_flight
        assert not generator.resumption._streams or all(
            each.is_delivered for each in generator.resumption._streams.values()
        )
        scheduler, counters = self.engine.scheduler, engine.counters
        assert scheduler is not None
        scheduler.check_invariants()
        assert not scheduler.has_unfinished, "something is left in the engine"
        assert counters.running == counters.waiting == counters.parked == 0, "a gauge is stale"
        assert counters.free_blocks + counters.cached_blocks == counters.total_blocks

    def _check_end(self) -> None:
        assert self._server is not None
        assert not asyncio.all_tasks() - {asyncio.current_task()}, "a task outlives the service"
        assert not any(engine.is_alive for engine in self.engines), "an engine outlives the front"
        restarts = self._generator.metrics.engine_restarts
        if self._is_doomed and self._num_lethal and not self.is_draining:
            assert self.outcome is not None, "the service does not give up"
            assert restarts == MAX_RESTARTS
        elif not self._is_doomed:
            assert self.outcome is None, self.outcome
            lethal = self._num_lethal + sum(engine.num_poisoned for engine in self.engines)
            lethal += 0 if self._mischief is None else len(self._mischief.hung)
            assert restarts <= lethal, "an engine is replaced without need"

    # what the service is made of

    @property
    def _generator(self) -> Generator:
        assert self._server is not None
        return self._server.generator

    @property
    def _chosen(self) -> dict[str, tuple[str, ...]]:
        return {} if self._mischief is None else CHOSEN

    def start_engine(self) -> Engine:
        loading = Loading.WELL
        if self._is_doomed and self.engines:
            loading = self.chance.choice([Loading.FAILS, Loading.DIES])
        elif self.engines and self.chance.random() < 0.03:
            raise OSError("no descriptor is left")
        engine = Engine(
            self.loop,
            LIBRARY,
            Guard(self.loop),
            tokenizer().vocab_size,
            loading,
            has_long_passes=self._has_long_passes,
        )
        self.engines.append(engine)
        return engine

    def _open_server(self, generator: Generator, *_: object, **__: object) -> MemoryServer:
        self._server = MemoryServer(self.loop, generator)
        return self._server

    def _note_taken(self, process: EngineProcess) -> None:
        self.engine = cast("Engine", process)


_TOO_LATE = (
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,  # somebody else has the name by then
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
_STATUSES = {status.value[0]: status for status in grpc.StatusCode}


def live(seed: int) -> Life:
    """Run one life.

    Raises:
        AssertionError: something is wrong; a note says how to see it again.
    """
    life = Life(seed)
    try:
        life.run()
    except BaseException as error:
        error.add_note(f"again: make simulate SEED={seed}")
        raise
    return life
