"""A service that is the real one but for the model, and whose scheduler is checked as it works.

Generator, gRPC server, engine loop, scheduler and policies are real; the runner computes hashes.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from cadenza.engine.channel import Channel, ChannelClosed
from cadenza.engine.loop import EngineLoop
from cadenza.engine.policies import EnginePolicies
from cadenza.policies.library import Library
from cadenza.service.admin import Admin, AdminAccess
from cadenza.service.engine_client import EngineClient
from cadenza.service.generator import Generator
from cadenza.service.limits import Limits, ResumptionLimits
from cadenza.service.policy_control import PolicyControl
from cadenza.service.rpc import GrpcServer
from cadenza.testing import Driver, fake_runner
from cadenza.wire.messages import PolicyConfig, Ready
from tests.service.byte_tokenizer import make_tokenizer
from tests.service.manual_timers import ManualTimers

MAX_MODEL_LEN = 64
CHECK_EVERY = 7  # steps


@dataclass(frozen=True, slots=True)
class Checked:
    """A service that runs, and the timers of its streams' graces."""

    generator: Generator
    port: int
    timers: ManualTimers


@asynccontextmanager
async def serve_checked() -> AsyncIterator[Checked]:
    """Serve under pressure: few blocks, few seats, small steps.

    Raises, at the end, what the engine's loop or the scheduler's invariants have raised.
    """
    tokenizer = make_tokenizer()
    usual_vocabulary, fake_runner.VOCABULARY = fake_runner.VOCABULARY, 250
    limits = {
        "num_blocks": 32,
        "block_size": 4,
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
    }
    end = tokenizer.vocab_size - 1
    ready = Ready(
        **limits,
        vocab_size=tokenizer.vocab_size,
        eos_token_ids=(end,),
        num_host_blocks=0,
        device="cpu",
        dtype="float32",
        load_s=0.0,
    )
    policies = EnginePolicies(PolicyConfig())
    driver = Driver(decisions=policies.decisions, **limits, eos_token_ids=frozenset({end}))
    ours, theirs = socket.socketpair()
    loop = _CheckedLoop(theirs, driver, policies, ready)
    client = await EngineClient.connect(ours)
    # Streams of clients that have left are kept for some batches, and little of them
    limits_of_streams = Limits(resumption=ResumptionLimits(grace_s=3, max_bytes=4096))
    timers = ManualTimers()
    generator = Generator(
        client, tokenizer, model_names=["tiny"], limits=limits_of_streams, later=timers
    )
    control = PolicyControl(client, generator.policies, Library(), PolicyConfig())
    server = GrpcServer(generator, Admin(control, AdminAccess(None, is_local=True)), port=0)
    try:
        await client.ready()
        port = await server.start()
        try:
            yield Checked(generator, port, timers)
        finally:
            generator.resumption.close()
            await server.stop(0)
        assert generator.num_queued == len(client.work) == 0
    finally:
        client.close()
        await client.lost()
        generator.close()
        theirs_error = await asyncio.to_thread(_join, loop)
        theirs.close()
        fake_runner.VOCABULARY = usual_vocabulary
        if theirs_error is not None:
            raise theirs_error


class _CheckedLoop:
    """An engine's loop in a thread, whose scheduler is checked now and then."""

    def __init__(
        self, sock: socket.socket, driver: Driver, policies: EnginePolicies, ready: Ready
    ) -> None:
        self.error: BaseException | None = None
        channel = Channel(sock)
        channel.send(ready)
        scheduler, step = driver.scheduler, driver.scheduler.step

        def checked(*arguments: Any) -> Any:
            result = step(*arguments)
            if scheduler.statistics().steps % CHECK_EVERY == 0:
                scheduler.check_invariants()
            return result

        scheduler.step = checked  # type: ignore[method-assign]
        self._loop = EngineLoop(channel, scheduler, driver.runner, {}, policies)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run()
        except ChannelClosed:
            pass
        except BaseException as error:
            self.error = error
            raise

    def join(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


def _join(loop: _CheckedLoop) -> BaseException | None:
    try:
        loop.join()
    except BaseException as error:
        return error
    return None
