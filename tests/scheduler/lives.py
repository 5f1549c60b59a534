"""Random lives of a scheduler with everything in them, driven from one seed.

Arrivals of one choice or several, of shared prefixes and salts, with and without credit and
deadlines; aborts, stops, grants, forced preemptions of either kind, resets of the prefix cache;
pools from far too small to roomy; every built-in policy. After every step all invariants are
recounted, and every token is compared with what the request would get alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from cadenza.policies.profile import Profile
from cadenza.scheduler.costs import CostModel
from cadenza.scheduler.states import FinishReason
from cadenza.testing import Driver, oracle
from cadenza.testing.driver import STEP_S

ORDERS = ["fcfs", "priority"]
RESERVATIONS = ["none", "no-evict", "new-token-ratio", "past-future"]
VICTIMS = ["newest", "lowest-priority"]
FLAVOURS = ["recompute", "swap", "cost-model"]
DISPLACEMENTS = ["nobody", "nobody", "strict-priority"]
PATIENCE = 400  # steps in which a life must end once nothing arrives and everybody has credit


@dataclass
class Expected:
    """What a choice may still get."""

    tokens: list[int]  # all that it would get alone
    leaves: bool = False  # it was aborted or stopped, or has a deadline: may end early


@dataclass
class Life:
    """One scheduler, its requests, and the chance that rules them."""

    seed: int
    driver: Driver = field(init=False)
    expected: dict[int, Expected] = field(default_factory=dict)
    next_request: int = 0
    trace: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.driver = self._driver()

    def _driver(self) -> Driver:
        chance = self.chance
        size = chance.choice([1, 2, 4, 8])
        num_blocks = chance.randint(max(2, -(-6 // size)), 30)
        seats = chance.randint(1, 8)
        profile = Profile(
            {
                "order_admissions": chance.choice(ORDERS),
                "reserve_blocks": chance.choice(RESERVATIONS),
                "select_victims": chance.choice(VICTIMS),
                "choose_preemption": chance.choice(FLAVOURS),
                "allow_displacement": chance.choice(DISPLACEMENTS),
            }
        )
        driver = Driver(
            profile,
            costs=CostModel(token_s=1e-3, copy_block_s=chance.choice([1e-4, 1e-2])),
            num_blocks=num_blocks,
            block_size=size,
            max_model_len=min(64, num_blocks * size),
            max_num_seqs=seats,
            max_num_batched_tokens=seats + size + chance.randint(0, 30),
            enable_prefix_caching=chance.random() < 0.85,
            watermark=chance.choice([0.0, 0.05]),
            num_host_blocks=chance.choice([0, 3, 40]),
            max_preemptions=chance.choice([0, 1, 8]),
            stall_steps=50,
        )
        return driver

    def arrive(self) -> None:
        """One request, of one choice or several."""
        chance, driver = self.chance, self.driver
        config = driver.scheduler.config
        prompt = [chance.randint(1, 2) for _ in range(chance.randint(1, config.max_model_len - 1))]
        n = chance.choice([1, 1, 1, 2, 3])
        n = min(n, config.max_num_seqs)
        max_tokens = chance.randint(1, 40)
        request = self.next_request
        self.next_request += n
        deadline_s = driver.now_s + chance.uniform(0, 40 * STEP_S)
        late = chance.random() < 0.05
        driver.add(
            request,
            prompt,
            max_tokens,
            n=n,
            priority=chance.randint(0, 3),
            cache_salt=chance.choice(["", "", "salt"]),
            credit=chance.choice([None, None, n, n + 3]),
            may_swap=chance.random() < 0.9,
            may_recompute=chance.random() < 0.9,
            deadline_s=deadline_s if late else float("inf"),
        )
        most = min(max_tokens, config.max_model_len - len(prompt))
        for choice in range(n):
            tokens = oracle(prompt, most, choice)
            self.expected[request + choice] = Expected(tokens, leaves=late)

    def disturb(self) -> None:
        """One thing that clients, operators or tests may do at any time, to anybody."""
        chance, scheduler = self.chance, self.driver.scheduler
        request = chance.randrange(self.next_request + 1)  # an unknown one now and then
        act = chance.choice(["drop", "finish", "grant", "grant", "swap", "recompute", "reset"])
        match act:
            case "drop" | "finish":
                getattr(scheduler, act)(request)
                if request in self.expected:
                    self.expected[request].leaves = True
            case "grant":
                scheduler.grant(request, chance.randint(1, 8))
            case "swap" | "recompute":
                scheduler.preempt(request, swap=act == "swap")
            case "reset":
                if chance.random() < 0.2:
                    scheduler.reset_prefix_cache()

    def step(self) -> None:
        report = self.driver.step()
        self.trace.append(
            (report.requests.tolist(), report.tokens.tolist(), report.finished.tolist())
        )
        self.trace += [(record,) for record in report.decisions]

    def live(self, arrivals: int) -> None:
        """Let requests come, disturb them, and see all of them to their end."""
        for _ in range(arrivals):
            self.arrive()
            for _ in range(self.chance.randint(0, 4)):
                self.step()
                if self.chance.random() < 0.3:
                    self.disturb()
        self.settle()

    def settle(self) -> None:
        """Everybody gets credit; a bounded number of steps sees all to their end."""
        scheduler = self.driver.scheduler
        for request in range(self.next_request):
            scheduler.grant(request, 1000)
        generated = sum(len(each.tokens) for each in self.expected.values())
        for _ in range(PATIENCE + 20 * generated):
            if not scheduler.has_unfinished:
                break
            self.step()
        assert not scheduler.has_unfinished, f"seed {self.seed} does not come to an end"
        self.check()

    def check(self) -> None:
        """Every choice got its own tokens, whole unless it was cut, and ended once."""
        driver = self.driver
        for request, expected in self.expected.items():
            where = f"seed {self.seed}, request {request}"
            tokens = driver.tokens.get(request, [])
            if expected.leaves:
                assert tokens == expected.tokens[: len(tokens)], where
            else:
                assert tokens == expected.tokens, where
                assert driver.ends[request] is FinishReason.LENGTH, where
        statistics = driver.scheduler.statistics()
        assert statistics.free_blocks + statistics.cached_blocks == statistics.total_blocks
        assert statistics.running == statistics.waiting == 0
