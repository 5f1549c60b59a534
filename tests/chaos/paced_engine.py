"""An engine process without a model: the real loop and scheduler, and steps of a fixed length.

Started in the engine's place as `paced_engine.py STEP_S SEATS --fd N ...`. Tokens are common words.
"""

from __future__ import annotations

import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cadenza.engine.channel import Channel, ChannelClosed
from cadenza.engine.loop import EngineLoop
from cadenza.engine.policies import EnginePolicies
from cadenza.scheduler.config import SchedulerConfig
from cadenza.scheduler.plan import StepOutcome, StepPlan
from cadenza.scheduler.scheduler import Scheduler
from cadenza.service.engine_process import EngineProcess, start_engine
from cadenza.testing.fake_runner import SteppedRunner
from cadenza.wire.logging import configure_logging
from cadenza.wire.messages import PolicyConfig, Ready

_WORDS = np.arange(1_000, 2_000, dtype=np.int32)  # ids of ordinary words of the demo's vocabulary
_VOCABULARY, _EOS = 49_152, 2
_NUM_BLOCKS, _BLOCK_SIZE, _MAX_MODEL_LEN = 16_384, 16, 8_192


def start(step_s: float, seats: int) -> EngineProcess:
    """Start one, as `start_engine` starts the real engine."""
    return start_engine((sys.executable, "-P", str(Path(__file__)), str(step_s), str(seats)))


class PacedRunner(SteppedRunner):
    """Takes as long over each plan, and draws the next words."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._drawn = 0

    def execute(self, plan: StepPlan) -> StepOutcome:
        time.sleep(self._step_s)
        count = len(plan.samples)
        tokens = self._words(count)
        return StepOutcome(step_id=plan.step_id, tokens=tokens, failed=np.zeros(count, dtype=bool))

    def _words(self, count: int) -> npt.NDArray[np.int32]:
        places = (self._drawn + np.arange(count)) % len(_WORDS)
        self._drawn += count
        return _WORDS[places]


def main(step_s: float, seats: int, fd: int) -> None:
    limits = SchedulerConfig(
        num_blocks=_NUM_BLOCKS,
        block_size=_BLOCK_SIZE,
        max_model_len=_MAX_MODEL_LEN,
        max_num_seqs=seats,
        max_num_batched_tokens=8 * seats,
        eos_token_ids=frozenset({_EOS}),
    )
    configure_logging("error")
    channel = Channel(socket.socket(fileno=fd))
    policies = EnginePolicies(PolicyConfig())
    scheduler = Scheduler(limits, policies.decisions)
    while not channel.receive(None):  # `Start`, which is no message of the loop's
        pass
    channel.send(
        Ready(
            max_model_len=limits.max_model_len,
            vocab_size=_VOCABULARY,
            eos_token_ids=(_EOS,),
            num_blocks=limits.num_blocks,
            num_host_blocks=0,
            block_size=limits.block_size,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            device="none",
            dtype="none",
            load_s=0.0,
        )
    )
    with suppress(ChannelClosed):  # the front is gone
        EngineLoop(channel, scheduler, PacedRunner(step_s), {}, policies).run()


if __name__ == "__main__":
    step, seats, _, descriptor, *_ = sys.argv[1:]
    main(float(step), int(seats), int(descriptor))
