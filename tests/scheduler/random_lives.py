"""Lives that a seed rules: small pools, many kinds of disturbance, every built-in policy."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

from cadenza.scheduler.costs import CostModel
from cadenza.testing import Driver, oracle
from cadenza.testing.driver import STEP_S
from cadenza.testing.fake_runner import VOCABULARY
from tests.scheduler.lives import CHOICES, NEVER, Life, profile_of

# What has to happen in any few thousand steps, or the lives no longer show anything.
KINDS = (
    "refused",
    "resumed",
    "resumed from host",
    "copy dropped",
    "swapped",
    "dropped",
    "displaced",
    "parked",
    "unparked",
    "starving",
    "copies on write",
    "copies out",
    "copies in",
    "cause: MEMORY",
    "cause: ROOM",
    "cause: DISPLACED",
    "cause: FORCED",
    "ended: EOS",
    "ended: STOP_TOKEN",
    "ended: LENGTH",
    "ended: FAILED",
    "ended: DEADLINE",
    "ended: STOPPED",
    "ended: ABORTED",
    "resets",
    "disturbed: use",
)
DISTURBANCES = [
    "drop",
    "drop",
    "finish",
    "fail",
    "deadline",
    "swap",
    "swap",
    "swap, reset",
    "recompute",
    "reset",
    "use",
]


class RandomLife(Life):
    """A life in which a generator of random numbers decides everything."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        super().__init__(self._driver(), f"seed {seed}")
        self.most_unfinished = self.driver.scheduler.config.max_num_seqs + self.chance.randint(1, 6)
        self.laziness = self.chance.choice([0.0, 0.5, 0.9])  # of the readers
        self.turbulence = self.chance.choice([0.02, 0.1, 0.3])
        self.prefix = self._tokens(30)

    def _driver(self) -> Driver:
        chance = self.chance
        size = chance.choice([1, 2, 4, 8])
        num_blocks = chance.randint(max(2, -(-6 // size)), max(4, 48 // size))
        seats = chance.randint(1, 8)
        eos = chance.sample(range(1, VOCABULARY), chance.choice([0, 0, 30]))
        return Driver(
            profile_of(self._policies()),
            costs=CostModel(token_s=1e-3, copy_block_s=chance.choice([1e-4, 1e-2])),
            num_blocks=num_blocks,
            block_size=size,
            max_model_len=min(48, num_blocks * size),
            max_num_seqs=seats,
            max_num_batched_tokens=seats + size + chance.randint(0, 30),
            eos_token_ids=frozenset(eos),
            enable_prefix_caching=chance.random() < 0.85,
            watermark=chance.choice([0.0, 0.05]),
            num_host_blocks=chance.choice([0, 3, 40]),
            max_preemptions=chance.choice([0, 1, 8]),
            stall_steps=50,
        )

    def _policies(self) -> dict[str, str]:
        return {hook: self.chance.choice(names) for hook, names in CHOICES.items()}

    def live(self, steps: int) -> None:
        """Let so many steps pass in turmoil, then see everybody to the end."""
        for _ in range(steps):
            if len(self.unfinished) < self.most_unfinished and self.chance.random() < 0.6:
                self.arrive_somehow()
            if self.chance.random() < self.turbulence:
                self.disturb()
            self.read()
            self.step()
        self.settle()

    def arrive_somehow(self) -> None:
        """One request as clients send them, now and then one that cannot be taken."""
        chance, config = self.chance, self.driver.scheduler.config
        longest = config.max_model_len - (chance.random() < 0.98)
        length = min(longest, chance.choice([1, 3, chance.randint(1, 16), chance.randint(1, 48)]))
        shared = chance.choice([0, length // 2, length])
        prompt = [*self.prefix[:shared], *self._tokens(length - len(self.prefix[:shared]))]
        n = min(chance.choice([1, 1, 1, 1, 2, 3]), config.max_num_seqs + (chance.random() < 0.01))
        max_tokens = chance.choice([1, chance.randint(1, 40), chance.randint(1, 40)])
        fields: dict[str, Any] = {
            "priority": chance.randint(0, 2),
            "cache_salt": chance.choice(["", "", "", "salt"]),
            "credit": chance.choice([None, None, None, n, n + 3]),
            "may_swap": chance.random() < 0.9,
            "may_recompute": chance.random() < 0.9,
            "ignore_eos": chance.random() < 0.3,
            "tpot_target_s": chance.choice([NEVER, 0.01]),
        }
        if chance.random() < 0.04:
            fields["deadline_s"] = self._soon()
        alone = oracle(prompt, 12)
        if chance.random() < 0.1:
            fields["stop_token_ids"] = frozenset(chance.sample(alone, 2))
        if n == 1 and chance.random() < 0.1:
            fields["emitted"] = alone[: chance.randint(1, 12)]
        self.arrive(prompt, max_tokens, n, **fields)

    def disturb(self) -> None:
        """One thing that clients, operators or tests may do at any time, to anybody."""
        chance = self.chance
        anybody = chance.randrange(self.next_request + 1)  # an unknown or ended one now and then
        request = chance.choice([*self.unfinished, anybody])
        act = chance.choice(DISTURBANCES)
        self.histories.seen[f"disturbed: {act}"] += 1
        match act:
            case "drop" | "finish":
                self.leave(request, stopped=act == "finish")
            case "fail":
                self.fail(request)
            case "deadline":
                self.set_deadline(request, chance.choice([self._soon(), NEVER]))
            case "swap" | "recompute":
                self.preempt(request, swap=act == "swap")
            case "reset":
                self.reset()
            case "use":
                self.use(self._policies())
            case "swap, reset":
                self.preempt(request, swap=True)
                self.step()
                self.reset()

    def reset(self) -> None:
        self.driver.scheduler.reset_prefix_cache()
        self.histories.seen["resets"] += 1

    def read(self) -> None:
        """Readers that used half their window grant it anew, if they are awake."""
        for stream in {id(each): each for each in self.streams.values()}.values():
            if stream.wants_to_grant and self.chance.random() >= self.laziness:
                self.grant(next(each for each in stream.requests if each in self.streams))

    def _soon(self) -> float:
        return self.driver.now_s + self.chance.uniform(-1, 40) * STEP_S

    def _tokens(self, num: int) -> list[int]:
        """Few distinct ids, so that prefixes are shared now and then without intent."""
        return [self.chance.randint(1, 2) for _ in range(num)]


def lives(first_seed: int, steps: int = 150) -> Iterator[RandomLife]:
    """Lives that have come to their end, one a seed, for ever.

    Raises:
        AssertionError: a life went wrong; a note names its seed.
    """
    for seed in count(first_seed):
        try:
            life = RandomLife(seed)
            life.live(steps)
        except BaseException as error:
            error.add_note(f"in the life of seed {seed}")
            raise
        yield life


def seen_in(first_seed: int, least_steps: int) -> Counter[str]:
    """Counts of all that happened in as many lives as have so many steps together."""
    seen: Counter[str] = Counter()
    for life in lives(first_seed):
        seen += life.histories.seen
        seen["steps"] += life.driver.scheduler.statistics().steps
        if seen["steps"] >= least_steps:
            break
    return seen
