"""A flood of requests of every kind, and those that came before it."""

from __future__ import annotations

from itertools import product
from typing import Any

from cadenza.policies.builtin.bounded_overtake import MAX_OVERTAKES
from cadenza.policies.hook_guard import HookGuard
from cadenza.scheduler.decisions import Admitted
from cadenza.testing.driver import Driver
from cadenza.testing.fake_runner import oracle
from cadenza.testing.trial import Failure, Subject, Trial

SEATS = 4
NORMAL_PER_STARVING = 3  # admissions between two of starving requests
_A_STEP = 4  # arrivals; far more than leave
_STEPS = 300
_GIVEN_UP_S = 0.5  # by whoever comes with the flood, or the queue would grow for ever
_STRIDE = 7  # through the kinds, so that neighbours differ in everything

_KINDS: tuple[dict[str, Any], ...] = tuple(
    {
        "priority": priority,
        "tenant": tenant,
        "length": length,
        "max_tokens": max_tokens,
        "ttft_target_s": ttft_target_s,
    }
    for priority, tenant, length, max_tokens, ttft_target_s in product(
        (-9, 0, 9), ("a", "b"), (2, 24), (1, 6), (0.02, float("inf"))
    )
)


def check_starvation(subject: Subject, guard: HookGuard) -> None:
    """Raises Failure if an early request is overtaken beyond the default guard's bound.

    That is 64 later arrivals, one step's admissions, and three for each starving request ahead. An
    order with `overtakes_within_tenant` is only bound within tenants; whoever waits when the flood
    begins has to be served while it lasts all the same. It lasts for 300 steps, in each of which
    requests are served some 20 tokens, outputs counted twice: an order that serves tenants in turn
    and has longer turns than those 6,000 tokens does not pass, however fair it is in the end.
    """
    trial = Trial(subject, guard)
    driver = Driver(decisions=trial.decisions, max_num_seqs=SEATS, num_blocks=96)
    flood = _Flood(driver)
    early = [flood.add(kind) for kind in _KINDS[:: len(_KINDS) // 16]]
    for _ in range(_STEPS):
        for _ in range(_A_STEP):
            kind = _KINDS[_STRIDE * flood.num % len(_KINDS)]
            flood.add(kind, deadline_s=driver.now_s + _GIVEN_UP_S)
        driver.step()
        trial.check("under a flood of requests")
        if all(request in driver.ends for request in early):
            break
    _check(subject, flood, early)


class _Flood:
    """Arrivals one after another, numbered from 0."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.num = 0
        self.kinds: dict[int, dict[str, Any]] = {}

    def add(self, kind: dict[str, Any], deadline_s: float = float("inf")) -> int:
        request, self.num = self.num, self.num + 1
        fields = {name: each for name, each in kind.items() if name != "length"}
        fields |= {"deadline_s": deadline_s, "ignore_eos": True}
        self.driver.add(request, self.prompt(request, kind), **fields)
        self.kinds[request] = kind
        return request

    @staticmethod
    def prompt(request: int, kind: dict[str, Any]) -> list[int]:
        """Half of each prompt is that of its tenant."""
        shared = [1 if kind["tenant"] == "a" else 2] * (kind["length"] // 2)
        return [*shared, *range(request + 3, request + 3 + kind["length"] - len(shared))]

    def overtakers(self, request: int, *, of_the_tenant: bool) -> list[int]:
        """Later arrivals that were admitted for the first time ahead of it."""
        admitted = [each.request for each in self.driver.decided if isinstance(each, Admitted)]
        ahead = admitted[: admitted.index(request)] if request in admitted else admitted
        tenant = self.kinds[request]["tenant"]
        return [
            other
            for other in ahead
            if other > request and (not of_the_tenant or self.kinds[other]["tenant"] == tenant)
        ]


def _check(subject: Subject, flood: _Flood, early: list[int]) -> None:
    is_within_tenant = getattr(subject.policy, "overtakes_within_tenant", False) is True
    own = "of its own tenant " if is_within_tenant else ""
    for ahead, request in enumerate(early):
        bound = MAX_OVERTAKES + SEATS + NORMAL_PER_STARVING * ahead
        overtakers = flood.overtakers(request, of_the_tenant=is_within_tenant)
        told = f"request {request} ({_described(flood.kinds[request])})"
        if len(overtakers) > bound:
            raise Failure(
                f"{told} was overtaken by {len(overtakers)} later arrivals {own}"
                f"(requests {overtakers[0]} to {overtakers[-1]}), and the default guard's bound "
                f"is {bound}"
            )
        if request not in flood.driver.ends:
            others = len(flood.overtakers(request, of_the_tenant=False))
            raise Failure(
                f"{told} waited when the flood began, and was not done after {_STEPS} steps and "
                f"{others} overtakes by later arrivals; "
                + (
                    "overtakes_within_tenant = True, with which the guard does not count other "
                    "tenants' requests, is for orders that are fair among tenants"
                    if is_within_tenant
                    else "something keeps it from its seat"
                )
            )
        kind = flood.kinds[request]
        assert flood.driver.tokens[request] == oracle(
            flood.prompt(request, kind), kind["max_tokens"]
        )


def _described(kind: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in kind.items())
