"""Front and engine in one thread, without sockets: a seed decides what happens next.

Generator, streams, engine loop, scheduler and policies are the real ones; the model is a hash of
all tokens before. Messages are held up in either direction, engines die with what they have not
told, readers stall, grant, stop at strings and leave. Whoever stays must get what it would have got
without any of that.
"""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass, field
from typing import Any

from cadenza.engine.loop import EngineLoop
from cadenza.engine.policies import EnginePolicies
from cadenza.policies.library import Library
from cadenza.service.engine_client import EngineClient
from cadenza.service.events import Delta, Finished
from cadenza.service.generation import Generation
from cadenza.service.generator import Generator
from cadenza.service.request import GenerationRequest
from cadenza.testing import Driver, fake_runner
from cadenza.wire.messages import EngineConfig, PolicyConfig, Ready, Resubmit, Submit, ToFront

from .byte_tokenizer import make_tokenizer

LIMITS = {
    "num_blocks": 24,
    "block_size": 4,
    "max_model_len": 64,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 24,
}
MAX_DEATHS = 2  # one more, and a request that never got on may be taken for their cause
_VOCABULARY = 250
_TURNS = 2000  # in which everything has to end
_LIBRARY = Library()
_SETTLES = 6  # turns of the event loop in which everybody has done what can be done at once


class SimEngine:
    """An engine and both directions of its connection. Stands for `Channel`, too."""

    backlog = 0

    def __init__(self, end: int, number: int) -> None:
        self.to_engine: list[Any] = []  # sent by the front, not yet there
        self.to_front: list[ToFront] = []
        self.num_reads = 0
        self.driver = Driver(**LIMITS, eos_token_ids=frozenset({end}))
        self._arrived: list[Any] = []
        policies = EnginePolicies(PolicyConfig(), library=_LIBRARY)
        self._loop = EngineLoop(
            self,  # type: ignore[arg-type]
            self.driver.scheduler,
            self.driver.runner,
            {},
            policies,
            clock=lambda: float(number),
        )

    # engine.Channel

    def receive(self, timeout_s: float | None) -> list[Any]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def send(self, message: ToFront) -> None:
        self.to_front.append(message)

    # service.EngineConnection

    def write(self, message: Any) -> None:
        self.to_engine.append(message)

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

    # the simulation

    def arrive(self, count: int) -> None:
        """So many messages reach the engine."""
        for message in self.to_engine[:count]:
            rows = message.rows if isinstance(message, Resubmit) else [message]
            for row in rows:
                if isinstance(row, Submit):
                    choices = {row.request + rank: row.choice + rank for rank in range(row.n)}
                    self.driver.runner.choice_of.update(choices)
        self._arrived += (
            self.to_engine[1:count] if _is_start(self.to_engine) else (self.to_engine[:count])
        )
        del self.to_engine[:count]

    def turn(self) -> None:
        self._loop.turn()
        self.driver.scheduler.check_invariants()


def _is_start(messages: list[Any]) -> bool:
    return bool(messages) and type(messages[0]).__name__ == "Start"


class SimClient(EngineClient):
    """The real one, over a simulated connection."""

    async def _open(self, end: Any) -> None:
        if self._loss.done():
            self._loss = asyncio.get_running_loop().create_future()
        self._connection = end


@dataclass(eq=False)
class Told:
    """What one client had, by choice."""

    fields: dict[str, Any]
    tokens: dict[int, list[int]] = field(default_factory=dict)
    text: dict[int, str] = field(default_factory=dict)
    ends: dict[int, Finished] = field(default_factory=dict)
    may_leave: bool = False
    left: bool = False
    granted: float = math.inf  # tokens of all choices
    failure: str | None = None

    def check(self, alone: Told) -> None:
        """Raises AssertionError unless it is what `alone` is, as far as the client stayed."""
        assert self.failure is None, self.failure
        for choice, tokens in self.tokens.items():
            assert tokens == alone.tokens[choice][: len(tokens)], "tokens are changed"
        if not self.left:
            assert self._all == alone._all, "something is lost or doubled"

    @property
    def most(self) -> int:
        """Tokens that it may get: grants add up to no more, so that none may be forgotten."""
        most: int = self.fields["max_tokens"] * self.fields.get("n", 1)
        return max(most, self.fields.get("credit", 0))

    @property
    def _all(self) -> tuple[object, ...]:
        return self.tokens, self.text, self.ends


class Simulation:
    """One front, one engine after another, and some clients."""

    def __init__(self, seed: int, num_clients: int = 5, *, is_quiet: bool = False) -> None:
        self.chance = random.Random(seed)
        self._num_clients = num_clients
        self._is_quiet = is_quiet
        self._num_deaths = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._live: dict[Told, Generation] = {}

    async def run(self, requests: list[dict[str, Any]]) -> list[Told]:
        """What each of these clients was told."""
        self._tokenizer = make_tokenizer()
        self._end = self._tokenizer.vocab_size - 1
        self.client = SimClient(recovers=True)
        self.engine = await self._another()
        await self.client._open(self.engine)
        self.client._dispatch(self.engine.to_front.pop())
        self.generator = Generator(self.client, self._tokenizer, model_names=["tiny"])
        told = [Told(fields, may_leave=self.chance.random() < 0.2) for fields in requests]
        waiting = [*told]
        try:
            for turn in range(_TURNS):
                if waiting and (self._is_quiet or self.chance.random() < 0.2):
                    await self._submit(waiting.pop())
                elif not waiting and not self._live:
                    break
                await self._act(is_calm=turn > _TURNS // 2)
                await self._settle()
            assert not self._live, "it does not end"
            await self._come_to_rest()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.generator.close()
        return told

    async def _come_to_rest(self) -> None:
        for _ in range(_SETTLES):
            if self.client._connection is None:
                await self._start()
            self._pass_on()
            await self._settle()
        assert len(self.client.work) == self.generator.num_queued == 0
        assert not self.engine.driver.scheduler.has_unfinished, "the engine keeps somebody"

    async def _settle(self) -> None:
        for _ in range(_SETTLES):
            await asyncio.sleep(0)

    async def _submit(self, told: Told) -> None:
        if not self.client.is_serving:  # it would wait, and so would everything else
            while not self.client.is_serving:
                await self._act(is_calm=True)
        told.granted = told.fields.get("credit", math.inf)
        generation = await self.generator.submit(GenerationRequest(**told.fields))
        self._live[told] = generation
        self._tasks.append(asyncio.create_task(self._read(told, generation)))

    async def _read(self, told: Told, generation: Generation) -> None:
        try:
            async for batch in generation:
                for event in batch:
                    if isinstance(event, Delta):
                        told.tokens.setdefault(event.choice, []).extend(event.token_ids)
                        num_tokens = sum(map(len, told.tokens.values()))
                        assert num_tokens <= told.granted, "more than the reader takes"
                        told.text[event.choice] = told.text.get(event.choice, "") + event.text
                    elif isinstance(event, Finished):
                        assert event.choice not in told.ends, "a choice ended twice"
                        told.ends[event.choice] = event
        except Exception as error:
            told.failure = f"{type(error).__name__}: {error}"
        finally:
            self._live.pop(told, None)

    async def _act(self, *, is_calm: bool) -> None:
        if self.client._connection is None:
            if is_calm or self.chance.random() < 0.3:
                await self._start()
            return
        dice = self.chance.random()
        if self._is_quiet or is_calm:
            self._pass_on()
            for told, generation in self._live.items():
                self._go_on(told, generation)
        elif dice < 0.3:
            self.engine.arrive(self.chance.randint(1, 4))
        elif dice < 0.6:
            self.engine.turn()
        elif dice < 0.85:
            self._hear(self.chance.randint(1, 3))
        elif dice < 0.87 and self._num_deaths < MAX_DEATHS:
            self._die()
        elif self._live:
            self._disturb(self.chance.choice([*self._live]))

    def _pass_on(self) -> None:
        self.engine.arrive(len(self.engine.to_engine))
        self.engine.turn()
        self._hear(len(self.engine.to_front))

    def _hear(self, count: int) -> None:
        heard, self.engine.to_front = self.engine.to_front[:count], self.engine.to_front[count:]
        for message in heard:
            self.client._dispatch(message)

    def _disturb(self, told: Told) -> None:
        generation, dice = self._live[told], self.chance.random()
        if dice < 0.1 and told.may_leave:
            told.left = True
            generation.cancel()
        elif "credit" in told.fields:
            self._grant(told, generation, self.chance.randint(1, 5))
        else:
            generation.stall(is_stalled=dice < 0.5)

    def _go_on(self, told: Told, generation: Generation) -> None:
        generation.stall(is_stalled=False)
        if "credit" in told.fields:
            self._grant(told, generation, told.most)

    def _grant(self, told: Told, generation: Generation, tokens: int) -> None:
        tokens = int(min(tokens, told.most - told.granted))
        told.granted += tokens
        generation.grant(tokens)

    def _die(self) -> None:
        self._num_deaths += 1
        self.client._on_lost(None)

    async def _start(self) -> None:
        self.engine = await self._another()
        await self.client.succeed(self.engine, EngineConfig(model="m"))  # type: ignore[arg-type]

    async def _another(self) -> SimEngine:
        engine = SimEngine(self._end, self._num_deaths)
        engine.to_front.append(
            Ready(
                **LIMITS,
                vocab_size=self._tokenizer.vocab_size,
                eos_token_ids=(self._end,),
                num_host_blocks=0,
                device="cpu",
                dtype="float32",
                load_s=0.0,
            )
        )
        return engine


def requests_of(chance: random.Random, count: int) -> list[dict[str, Any]]:
    """Of all kinds that have something to lose."""
    kinds: list[dict[str, Any]] = [
        {},
        {"n": 3},
        {"credit": 3},
        {"n": 2, "credit": 4},
        {"n": 3, "credit": 6, "stop": ["a", "e", "1", "5"]},
        {"stop": ["a", "e", "0"]},
        {"stop": ["ab", "z"], "n": 2, "include_stop_str_in_output": True},
    ]
    return [
        {
            "token_ids": [chance.randint(1, _VOCABULARY - 1) for _ in range(chance.randint(1, 20))],
            "max_tokens": chance.randint(1, 24),
            **chance.choice(kinds),
        }
        for _ in range(count)
    ]


async def simulate(seed: int) -> None:
    """Raises AssertionError; a note says how to see it again."""
    requests = requests_of(random.Random(seed), 5)
    usual, fake_runner.VOCABULARY = fake_runner.VOCABULARY, _VOCABULARY
    try:
        alone = await Simulation(seed, is_quiet=True).run(requests)
        for told, expected in zip(await Simulation(seed).run(requests), alone, strict=True):
            told.check(expected)
    except BaseException as error:
        error.add_note(f"again: SIMULATED={seed} pytest tests/service/test_simulation.py")
        raise
    finally:
        fake_runner.VOCABULARY = usual
