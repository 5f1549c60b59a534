"""The vanguard: whoever is in it would have entered alone, one after another."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pytest

from cadenza.scheduler import admission
from cadenza.scheduler.candidates import Candidate, Candidates, Entry
from cadenza.scheduler.costs import CostModel
from cadenza.scheduler.vanguard import vanguard
from cadenza.testing import Driver
from tests.scheduler.lives import CHOICES, profile_of
from tests.scheduler.test_seating import SIZE, Stage

SEEDS = range(12)


class Line(Stage):
    """A stage on which rows decode, and others wait."""

    def __init__(self, num_decodes: int = 1) -> None:
        super().__init__()
        nobody = np.empty(0, dtype=np.int64)
        self.plan.place_running(np.arange(20, 20 + num_decodes), nobody, nobody)

    def vanguard(self, *rows: int, keep: tuple[int, ...] = (), promised: int = 0) -> list[int]:
        """The rows of it."""
        waiting = np.array(rows, dtype=np.intp)
        candidates = Candidates(self.stores.table, waiting, np.zeros(len(rows), dtype=bool))
        candidates.keep = [0, *keep] if keep else [0] * (len(rows) + 1)
        group = vanguard(self.stores, self.plan, candidates, promised)
        for candidate, entry in group:
            assert entry.computed == len(entry.found) * SIZE
            assert entry.found.tolist() == self.stores.prefixes.found(candidate.row).tolist()
        return [candidate.row for candidate, _ in group]


def trace_of(seed: int) -> list[str]:
    """What is decided while requests come in bursts, some with a common beginning."""
    chance = random.Random(seed)
    driver = Driver(
        profile_of({hook: chance.choice(names) for hook, names in CHOICES.items()}),
        costs=CostModel(token_s=1e-3, copy_block_s=1e-3),
        num_blocks=chance.randint(24, 120),
        max_num_seqs=16,
        max_num_batched_tokens=chance.randint(20, 120),
        watermark=chance.choice([0.0, 0.05]),
        num_host_blocks=chance.choice([0, 20]),
    )
    common, trace = [chance.randint(1, 9) for _ in range(24)], []
    requests = 0
    for _ in range(40):
        for _ in range(chance.choice([0, 0, 0, chance.randint(1, 12)])):
            length = chance.randint(1, 24)
            prompt = [*common[: chance.randint(0, length)], *chance.choices(range(1, 9), k=length)]
            n = chance.choice([1] * 20 + [2])
            credit = chance.choice([None] * 30 + [20])
            tenant = chance.choice(["", "one", "two"])
            driver.add(requests, prompt, chance.randint(1, 20), n=n, credit=credit, tenant=tenant)
            requests += n
        report = driver.step()
        with np.printoptions(threshold=sys.maxsize):
            trace.append(f"{report} {driver.plan and driver.plan.requests}")
    return trace


def test_the_same_is_decided_without_it(monkeypatch: pytest.MonkeyPatch):
    sizes: list[int] = []

    def counted(*arguments: Any) -> list[tuple[Candidate, Entry]]:
        group = vanguard(*arguments)
        sizes.append(len(group))
        return group

    monkeypatch.setattr(admission, "vanguard", counted)
    together = [trace_of(seed) for seed in SEEDS]
    monkeypatch.setattr(admission, "vanguard", lambda *arguments: [])
    singly = [trace_of(seed) for seed in SEEDS]

    assert sum(size > 1 for size in sizes) > len(SEEDS), "hardly any enter together"
    for one, other in zip(together, singly, strict=True):
        assert one == other


def test_as_many_enter_together_as_there_are_seats():
    line = Line()
    rows = [line.wait(request, request) for request in range(6)]

    assert line.vanguard(*rows) == rows[:4]
    assert line.vanguard(rows[5], rows[2]) == [rows[5], rows[2]]
    assert line.vanguard() == []


def test_nobody_enters_so_while_nothing_runs():
    line = Line(num_decodes=0)

    assert line.vanguard(line.wait(1, 1)) == []


def test_it_ends_before_the_first_that_lacks_blocks():
    """Beside the watermark of one, those that are promised, and those that a policy keeps."""
    line = Line()
    rows = [line.wait(request, *range(2 * SIZE)) for request in range(4)]
    line.stores.pool.allocate(9)  # 7 are left

    assert line.vanguard(*rows) == rows[:3]
    assert line.vanguard(*rows, promised=1) == rows[:2]
    assert line.vanguard(*rows, keep=(0, 2, 0, 0)) == rows[:3]
    assert line.vanguard(*rows, keep=(0, 3, 0, 0)) == rows[:1]


def test_what_others_hold_costs_nothing_and_what_is_found_counts_for_each():
    line = Line()
    prompt = range(2 * SIZE)
    cached = line.compute(*prompt)
    rows = [line.wait(request, *prompt, 99) for request in range(3)]
    line.stores.pool.allocate(9)  # 7 are left, two of them cached

    assert line.vanguard(*rows) == rows[:2], "one would have to pin them first"
    line.stores.pool.pin(np.array(cached))
    assert line.vanguard(*rows) == rows


def test_it_ends_before_the_first_that_lacks_tokens():
    """Of 31 tokens each long prompt is promised a block's worth, and may have half with others."""
    line = Line()
    long = [line.wait(request, *range(2 * SIZE)) for request in range(4)]
    short = line.wait(4, 1)

    assert line.vanguard(*long) == long[:3]
    assert line.vanguard(*long[:3], short) == [*long[:3], short]


def test_one_token_is_left_for_each_of_them():
    line = Line(num_decodes=29)  # of 32 tokens
    rows = [line.wait(request, request) for request in range(4)]

    assert line.vanguard(*rows) == rows[:3]


def test_rows_that_differ_in_more_than_length_are_left_to_be_looked_at():
    line = Line()
    plain, several = line.wait(1, 1), line.wait(2, 1, n=2)
    limited = line.wait(4, 1, credit=5)

    assert line.vanguard(plain, several, limited) == [plain]
    assert line.vanguard(limited, plain) == []
