"""A steady flood of requests over a few that came first and rank last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cadenza.policies.builtin.bounded_overtake import MAX_OVERTAKES
from cadenza.scheduler.decisions import Admitted, Starving
from cadenza.scheduler.waiting import NORMAL_PER_STARVING
from cadenza.testing import Driver, oracle

Prompt = Sequence[int]

POOR_TOKENS = 3  # outputs of each of those who came first
_MOST = 3_000  # arrivals


def overtakers(driver: Driver, request: int) -> list[int]:
    """Later arrivals (by number) that were admitted for the first time ahead of `request`."""
    admitted = [record.request for record in driver.decided if isinstance(record, Admitted)]
    ahead = admitted[: admitted.index(request)] if request in admitted else admitted
    return [other for other in ahead if other > request]


def bound(driver: Driver, ahead: int) -> int:
    """Overtakes at most: 64, one step's admissions, and three for each that starves ahead."""
    return MAX_OVERTAKES + driver.scheduler.config.max_num_seqs + NORMAL_PER_STARVING * ahead


class Flood:
    """`poor` requests come first and rank last; others come as fast as they are admitted."""

    def __init__(self, driver: Driver, poor: Sequence[Prompt], **fields: Any) -> None:
        """Add the poor, numbered from 0; `fields` are of their `Arrival`s."""
        self.driver, self.poor, self.next_request = driver, poor, len(poor)
        for request, prompt in enumerate(poor):
            driver.add(request, prompt, **{"max_tokens": POOR_TOKENS, "priority": 9} | fields)

    @property
    def poor_wait(self) -> bool:
        """Whether any of the poor has not ended."""
        return not all(request in self.driver.ends for request in range(len(self.poor)))

    def add(self, prompt: Prompt, max_tokens: int = 1, **fields: Any) -> None:
        self.driver.add(self.next_request, prompt, max_tokens, **fields)
        self.next_request += 1

    def run(self, rich: Prompt, max_tokens: int = 1, least: int = 0) -> None:
        """Until the last of the poor has ended; `least` others come in each step in any case."""
        fields = {"max_tokens": max_tokens, "priority": 0}
        while self.poor_wait:
            self.step(lambda request: {"prompt": [*rich, request % 900 + 1], **fields}, least)
            assert self.next_request < _MOST, "the poor starve"

    def step(self, rich: Callable[[int], Mapping[str, Any]], least: int = 0) -> None:
        """One step before which the queue is filled with what `rich` says of a new request."""
        seats = self.driver.scheduler.config.max_num_seqs
        waiting = self.driver.scheduler.statistics().waiting
        for _ in range(max(least, 2 * seats + len(self.poor) - waiting)):
            self.add(**rich(self.next_request))
        self.driver.step()

    def check(self) -> None:
        """The bound was kept, was needed, and all got what is theirs."""
        assert [record for record in self.driver.decided if isinstance(record, Starving)]
        for ahead, prompt in enumerate(self.poor):
            assert len(overtakers(self.driver, ahead)) <= bound(self.driver, ahead)
            assert self.driver.tokens[ahead] == oracle(prompt, POOR_TOKENS)
