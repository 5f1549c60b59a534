"""Who is taken in, who is refused, and who makes room; and that no place is ever lost."""

from __future__ import annotations

import math
import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from cadenza.policies import ArrivalColumns, Refusal, ServiceView, hookimpl
from cadenza.policies.tenants import MAX_IDLE
from cadenza.service.errors import Overloaded, QuotaExceeded
from cadenza.wire.messages import Counters

from .entering import Door


class Scores:
    """Sheds by the number in the request's priority, and keeps what it saw."""

    seen: list[dict[str, Any]]

    def __init__(self) -> None:
        self.seen = []

    def __call__(self) -> Scores:
        return self

    @hookimpl
    def shed_load(self, waiting: ArrivalColumns, service: ServiceView) -> np.ndarray:
        names = [name for name in dir(waiting) if not name.startswith("_")]
        self.seen.append({name: getattr(waiting, name).tolist() for name in names})
        self.service = service
        return waiting.priority.astype(float)


def shedding(size: int = 4) -> tuple[Door, Scores]:
    scores = Scores()
    return Door(size, policies={"mine": scores}, shed_load="mine"), scores  # type: ignore[dict-item]


def refuses(door: Door, *prompts: Any, **fields: Any) -> Overloaded:
    before = door.queue.num_taken
    with pytest.raises(Overloaded) as refused:
        door.enter(*prompts, **fields)
    assert door.queue.num_taken == before
    return refused.value


def test_choices_take_places_and_the_bound_is_of_choices():
    door = Door(4)
    first = door.enter(n=3)

    assert door.queue.num_taken == 3
    error = refuses(door, n=2)
    assert error.message == "The queue is full (3 choices wait). Try again later."
    assert error.retry_after_s == 1.0
    door.enter()
    first.leave()
    assert door.queue.num_taken == 1
    assert door.metrics.refused == {"max_num_queued_reqs": 1, "shed": 0}


def test_several_prompts_enter_together_or_not_at_all():
    door = Door(4)
    door.enter()

    refuses(door, [1], [2], n=2)
    assert len(door.enter([1], [2], [3]).places) == 3
    assert door.queue.num_taken == 4


def test_places_are_given_back_once():
    door = Door(4)
    entry = door.enter(n=3)
    [places] = entry.places

    places.leave()
    places.leave(5)
    entry.leave()
    places.leave_all()

    assert door.queue.num_taken == door.queue.num_tokens == 0


def test_the_newcomer_is_refused_unless_somebody_less_urgent_waits():
    door, _ = shedding(2)
    door.enter(priority=5)
    door.enter(priority=5)

    refuses(door, priority=5)  # equals: the latest
    refuses(door, priority=6)


def test_just_enough_leave_the_last_in_rank_first():
    door, _ = shedding(6)
    entries = {
        name: door.enter(priority=priority, n=n)
        for name, priority, n in [("a", 9, 1), ("b", 8, 2), ("c", 9, 1), ("d", 1, 2)]
    }

    door.enter(priority=0, n=1)
    assert [name for name, entry in entries.items() if entry.refusal] == ["c"]  # later than a

    # two more: b alone is enough, and of equal use with a, but a is the last in rank
    door.enter(priority=0, n=3)
    assert [name for name, entry in entries.items() if entry.refusal] == ["a", "b", "c"]
    assert door.queue.num_taken == 6
    assert door.metrics.refused == {"max_num_queued_reqs": 0, "shed": 3}
    assert {str(entries[name].refusal) for name in "abc"} == {
        "The queue is full (6 choices wait). Try again later."
    }


def test_who_need_not_leave_is_spared():
    door, _ = shedding(4)
    small, large = door.enter(priority=9, n=1), door.enter(priority=8, n=3)

    door.enter(priority=0, n=3)

    assert (small.refusal, large.refusal is not None) == (None, True)


def test_if_not_enough_can_leave_nobody_does():
    door, _ = shedding(4)
    urgent, other = door.enter(priority=0, n=3), door.enter(priority=9)

    refuses(door, priority=5, n=2)
    refuses(door, priority=-1, n=5)  # more than there are places at all

    assert urgent.refusal is other.refusal is None
    assert door.queue.num_taken == 4


def test_who_is_shed_gets_the_error_of_a_refused_newcomer():
    door, _ = shedding(1)
    entry = door.enter(priority=1)

    door.enter(priority=0)

    assert isinstance(entry.refusal, Overloaded)
    assert entry.refusal.message == "The queue is full (1 choices wait). Try again later."
    assert entry.refusal.retry_after_s == 1.0


def test_who_has_had_a_seat_is_not_asked_about():
    door, scores = shedding(4)
    entry = door.enter([1], [2], priority=7)
    entry.places[1].leave()
    door.enter(priority=3, n=3)

    refuses(door, priority=4)

    assert scores.seen[-1]["priority"] == [3, 4]
    assert entry.refusal is None


def test_a_policy_sees_what_waits_and_the_newcomer_last():
    door, scores = shedding(5)
    door.enter([1, 2], [3, 4, 5], tenant="a", max_tokens=7)
    door.now_s += 2
    door.enter([1] * 6, tenant="b", n=2, ttft_target_s=0.5, deadline_s=1234.0)
    door.now_s += 1
    door.counters = Counters()

    refuses(door, [9], tenant="a", n=2, tpot_target_s=0.25)

    assert scores.seen == [
        {
            "arrival_s": [1000.0, 1002.0, 1003.0],
            "choices": [2, 2, 2],
            "prompt_tokens": [5, 6, 1],
            "max_tokens": [7, 250, 255],
            "priority": [0, 0, 0],
            "tenant": [1, 2, 1],
            "tenant_queued": [2, 2, 2],
            "deadline_s": [math.inf, 1234.0, math.inf],
            "ttft_target_s": [math.inf, 0.5, math.inf],
            "tpot_target_s": [math.inf, math.inf, 0.25],
        }
    ]
    service = scores.service
    assert (service.queued, service.max_queued, service.queued_tokens) == (4, 5, 11)
    assert (service.now_s, service.total_blocks, service.block_size) == (1003.0, 64, 16)
    assert service.tenants == {"a": 1, "b": 2}


def test_a_gate_knows_how_long_a_seat_takes():
    door = Door(20, gate_arrivals="ttft-target")
    entries = [door.enter() for _ in range(10)]
    for entry in entries[:5]:
        door.now_s += 1.0
        [places] = entry.places
        places.seat()

    assert refuses(door, ttft_target_s=4.5).retry_after_s == 0.5
    door.enter(ttft_target_s=5.0)
    refuses(door, ttft_target_s=5.0)
    for entry in entries[5:]:
        entry.leave()
    door.enter(ttft_target_s=1.0)


def test_a_prompt_is_estimated_until_it_is_encoded():
    door, scores = shedding(2)
    text = door.enter("x" * 40)
    assert door.queue.num_tokens == 10  # four characters a token, until something is known

    door.entrance.learn(text, 0, 20)
    assert door.queue.num_tokens == 20
    door.enter("y" * 40)
    refuses(door, "z" * 41)

    assert scores.seen[-1]["prompt_tokens"] == [20, 20, 21]
    text.leave()
    door.entrance.learn(text, 0, 3)  # too late to matter
    assert door.queue.num_tokens == 20


class Gate:
    """Refuses by tenant's number, and counts how often it was asked."""

    limit = "tenant"

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> Gate:
        return self

    @hookimpl
    def gate_arrivals(self, arrivals: ArrivalColumns, service: ServiceView) -> list[Refusal | None]:
        self.asked += 1
        return [
            Refusal(reason=f"not tenant {tenant}", limit=self.limit, retry_after_s=7.5)
            if tenant % 2
            else None
            for tenant in arrivals.tenant.tolist()
        ]


class ServiceGate(Gate):
    limit = "service"


@pytest.mark.parametrize(
    ("gate", "error"), [(Gate(), QuotaExceeded), (ServiceGate(), Overloaded)], ids=["429", "503"]
)
def test_a_gate_refuses_in_its_own_words_for_whose_limit_it_is(gate: Gate, error: type):
    door = Door(4, policies={"mine": gate}, gate_arrivals="mine")  # type: ignore[dict-item]
    with pytest.raises(error) as refused:
        door.enter(tenant="a")

    assert type(refused.value) is error
    assert refused.value.message == "not tenant 1"
    assert refused.value.retry_after_s == 7.5
    assert door.metrics.refused["mine"] == 1
    assert door.queue.num_taken == 0
    door.enter(tenant="b")
    assert door.queue.num_taken == 1


@pytest.mark.parametrize("way", ["leave", "refused by a gate", "refused for the queue"])
def test_tenants_that_come_and_go_are_forgotten(way: str):
    class Nobody:
        @hookimpl
        def gate_arrivals(self, arrivals: ArrivalColumns) -> list[Refusal]:
            return [Refusal(reason="No.", limit="tenant")] * len(arrivals)

    gates = {"policies": {"nobody": Nobody}, "gate_arrivals": "nobody"}
    door = Door(1, **(gates if way == "refused by a gate" else {}), shed_load="lowest-priority")
    if way == "refused for the queue":
        door.enter()
    numbers = set()
    for num in range(3 * MAX_IDLE):
        with suppress(Overloaded, QuotaExceeded):
            entry = door.enter(tenant=f"tenant {num}")
            entry.leave()
        number = door.queue.tenants.enter(f"another {num}")
        door.queue.tenants.leave(number)
        numbers.add(number)

    assert max(numbers) <= MAX_IDLE + 3


def test_a_full_queue_costs_no_gate_anything():
    gate = Gate()
    door = Door(1, policies={"mine": gate}, gate_arrivals="mine")  # type: ignore[dict-item]
    door.enter()
    assert gate.asked == 1

    refuses(door)

    assert gate.asked == 1


def test_nobody_leaves_for_somebody_whom_a_gate_refuses():
    gate, scores = Gate(), Scores()
    door = Door(1, policies={"gate": gate, "shed": scores}, gate_arrivals="gate", shed_load="shed")  # type: ignore[dict-item]
    entry = door.enter(priority=5)

    with pytest.raises(QuotaExceeded):
        door.enter(priority=0, tenant="a")

    assert entry.refusal is None
    assert door.queue.num_taken == 1


class Keeping:
    """Refuses nobody, and keeps what it was told."""

    def __call__(self) -> Keeping:
        return self

    @hookimpl
    def gate_arrivals(self, arrivals: ArrivalColumns, service: ServiceView) -> None:
        self.queued, self.queued_tokens = service.queued, service.queued_tokens
        self.by_tenant = arrivals.tenant_queued.tolist()


def test_a_gate_does_not_count_whoever_makes_room():
    gate, scores = Keeping(), Scores()
    door = Door(6, policies={"gate": gate, "shed": scores}, gate_arrivals="gate", shed_load="shed")  # type: ignore[dict-item]
    door.enter([1] * 5, priority=1, tenant="a")
    door.enter([1] * 7, [1] * 9, priority=9, tenant="a", n=2)
    door.enter([1], priority=0, tenant="b")
    assert (gate.queued, gate.by_tenant) == (5, [0])

    door.enter([1], [1], priority=0, tenant="a")

    assert (gate.queued, gate.queued_tokens, gate.by_tenant) == (2, 6, [1, 1])
    assert door.queue.num_taken == 4


def test_a_tenant_may_have_what_it_makes_room_with_itself():
    door = Door(
        2,
        gate_arrivals="tenant-quota",
        shed_load="lowest-priority",
        options={"tenant-quota": {"max_queued": 2}},
    )
    door.enter(tenant="a", priority=1)
    door.enter(tenant="a", priority=1)

    door.enter(tenant="a", priority=0)

    assert door.queue.num_taken == 2


def test_an_entrance_that_fails_in_the_end_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    door = Door(1)
    monkeypatch.setattr(door.queue, "enter", lambda entry: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        door.enter(tenant="a")

    assert door.queue.num_taken == 0
    assert door.queue.tenants._rows[1] == 0


def test_a_gate_cannot_lift_the_bound():
    class Everybody:
        @hookimpl
        def gate_arrivals(self, arrivals: ArrivalColumns, service: ServiceView) -> list[None]:
            return [None] * len(arrivals)

        @hookimpl
        def shed_load(self, waiting: ArrivalColumns, service: ServiceView) -> np.ndarray:
            return np.arange(len(waiting), 0, -1.0)

    door = Door(2, policies={"mine": Everybody}, gate_arrivals="mine", shed_load="mine")
    for _ in range(20):
        door.enter()
        assert door.queue.num_taken <= 2


def test_a_place_is_held_for_a_call_that_waits_for_the_engine():
    door = Door(1)
    place = door.entrance.hold()

    with pytest.raises(Overloaded):
        door.entrance.hold()
    place.leave_all()

    assert door.queue.num_taken == 0
    assert door.metrics.refused["max_num_queued_reqs"] == 1


@pytest.mark.parametrize("seed", range(5))
def test_counts_are_what_a_recount_says_through_any_history(seed: int):
    chance = random.Random(seed)
    door, _ = shedding(12)
    gone: list[Any] = []
    live: list[Any] = []
    for _ in range(400):
        act = chance.random()
        if act < 0.5:
            fields = {"n": chance.randint(1, 4), "priority": chance.randint(0, 3)}
            prompts = [[1] * chance.randint(1, 9) for _ in range(chance.randint(1, 3))]
            tenant = chance.choice([None, "a", "b", "c"])
            try:
                live.append(door.enter(*prompts, tenant=tenant, **fields))
            except Overloaded:
                continue
        elif live:
            entry = chance.choice(live)
            if act < 0.8:
                chance.choice(entry.places).leave()
            else:
                entry.leave()
                live.remove(entry)
                gone.append(entry)
        held = [places for entry in live for places in entry.places]
        assert door.queue.num_taken == sum(places._num_held for places in held) <= 12
        by_tenant = [0] * 10
        for places in held:
            by_tenant[places._tenant] += places._num_held
        assert [door.queue.queued_by(tenant) for tenant in range(10)] == by_tenant
        assert all(not entry.refusal for entry in door.queue.waiting)
        untouched = [places for places in held if places._entry is not None]
        assert door.queue.num_tokens == sum(places._prompt_tokens for places in untouched)
    for entry in live:
        entry.leave()
    assert door.queue.num_taken == door.queue.num_tokens == 0
    assert door.queue.waiting == ()
