"""An engine without a model, for benchmarks of the front: every row gets a token a step.

Speaks the wire's messages on the descriptor that it is given, as the engine process does. Tokens
are random common words of the demo's vocabulary: each has text, and none is half a character.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from cadenza.checkpoints.locate import locate
from cadenza.service.engine_process import EngineProcess, start_engine
from cadenza.service.tokenizer import load_tokenizer
from cadenza.wire.codec import FrameReader, encode
from cadenza.wire.messages import (
    Cancel,
    Counters,
    Finish,
    Finished,
    Ready,
    Shutdown,
    Step,
    Submit,
    ToEngine,
)

_COMMON = range(260, 10_000)  # ids of words that were merged early, beside other tokens
_SPACE = "\u0120"  # what a word of the vocabulary begins with

_READY = Ready(
    max_model_len=32_768,
    vocab_size=49_152,
    eos_token_ids=(2,),
    num_blocks=1,
    num_host_blocks=0,
    block_size=16,
    max_num_seqs=512,
    max_num_batched_tokens=8192,
    device="none",
    dtype="none",
    load_s=0.0,
)


def ready(**figures: Any) -> Ready:
    """What an engine says of itself that serves nothing real, but for these figures."""
    return msgspec.structs.replace(_READY, **figures)


def start(step_s: float) -> EngineProcess:
    """Start one as a process of its own; it makes at most 1 / `step_s` steps a second."""
    return start_engine((sys.executable, "-P", __file__, str(step_s)))


def common_words() -> npt.NDArray[np.int32]:
    """Ids of words with a space before them."""
    name = load_tokenizer(locate("demo").path).backend.id_to_token
    words = [token for token in _COMMON if (name(token) or "")[:1] == _SPACE]
    return np.array([token for token in words if name(token)[1:].encode().isalpha()], np.int32)


@dataclass
class SyntheticEngine:
    """Gives every row a token a step until the row has all that it wants."""

    channel: socket.socket
    step_s: float
    words: npt.NDArray[np.int32]
    rows: dict[int, int] = field(default_factory=dict)  # request -> tokens left
    arrived: list[int] = field(default_factory=list)  # since the last step
    steps: int = 0
    is_running: bool = True

    def run(self) -> None:
        reader: FrameReader[ToEngine] = FrameReader(ToEngine)  # type: ignore[arg-type]
        self._random = np.random.default_rng(0)
        self.channel.sendall(encode(ready()))
        due_s = time.perf_counter()
        while self.is_running:
            due_s = max(due_s + self.step_s, time.perf_counter())
            self._hear(reader, due_s)
            if self.is_running and self.rows:
                self.channel.sendall(encode(self._step()))

    def _hear(self, reader: FrameReader[ToEngine], until_s: float) -> None:
        while self.is_running and (left_s := until_s - time.perf_counter()) > 0:
            self.channel.settimeout(left_s)
            with contextlib.suppress(TimeoutError):
                data = self.channel.recv(1 << 16)
                self.is_running = bool(data)
                for message in reader.feed(data):
                    self._handle(message)
        self.channel.settimeout(None)

    def _handle(self, message: ToEngine) -> None:
        match message:
            case Submit():
                self.rows[message.request] = message.max_tokens
                self.arrived.append(message.request)
            case Cancel(request) | Finish(request):
                self.rows.pop(request, None)
            case Shutdown():
                self.is_running = False

    def _step(self) -> Step:
        requests, arrived, self.arrived = list(self.rows), self.arrived, []
        self.rows = {request: left - 1 for request, left in self.rows.items()}
        ends = [Finished.NOT if self.rows[request] else Finished.LENGTH for request in requests]
        self.rows = {request: left for request, left in self.rows.items() if left}
        self.steps += 1
        return Step(
            step_id=self.steps,
            requests=np.array(requests, dtype="<i8").tobytes(),
            tokens=self._random.choice(self.words, len(requests)).astype("<i4").tobytes(),
            finished=bytes(ends),
            admitted=np.array(arrived, dtype="<i8").tobytes(),
            admitted_cached=bytes(4 * len(arrived)),
            counters=Counters(running=len(self.rows), steps=self.steps, total_blocks=1),
        )


def main(step_s: str, _: str, fd: str, *__: str) -> None:
    SyntheticEngine(socket.socket(fileno=int(fd)), float(step_s), common_words()).run()


if __name__ == "__main__":
    arguments: Sequence[str] = sys.argv[1:]
    main(*arguments)
