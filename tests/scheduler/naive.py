"""The scheduler once more, as plainly as possible: lists, loops, and no columns.

Written from the rules, not from the code, to disagree with the columnar scheduler wherever one of
them is wrong. Policies: the best priority first, among equals first come first served; the worst
priority is the first victim, among equals the newest admission; no reservation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

UNIT = 1 << 20  # parts of a token

# The name of the publication that a block continues, None at the start, and the block's tokens
Place = tuple[object, tuple[int, ...]]


@dataclass(eq=False)
class Block:
    place: Place | None = None  # while published
    name: object = None  # of this publication; a new one each time
    references: int = 1


@dataclass(eq=False)
class Row:
    request: int
    tokens: list[int]
    prompt: int
    max_tokens: int
    priority: int
    computed: int = 0
    published: int = 0
    end: Block | None = None  # of the published prefix that its blocks continue
    end_name: object = None
    blocks: list[Block] = field(default_factory=list)
    fresh: int = 0  # blocks that it gets once all are admitted
    rank: int = -1  # of the first admission
    seat: int = -1
    due: int = 0  # parts of tokens that equal shares would still have to compute of its prompt
    complete: bool = True  # its prompt

    @property
    def remaining(self) -> int:
        return len(self.tokens) - self.computed


class NaiveScheduler:
    def __init__(
        self, num_blocks: int, size: int, longest: int, seats: int, budget: int, keep: int
    ):
        self.size, self.longest, self.seats, self.budget, self.keep = (
            size,
            longest,
            seats,
            budget,
            keep,
        )
        self.free = num_blocks
        self.cached: list[Block] = []  # oldest release first
        self.index: dict[Place, Block] = {}
        self.waiting: list[Row] = []  # by arrival
        self.running: list[Row] = []  # by first admission
        self.arrivals: list[Row] = []
        self.ranks = self.reserved = 0
        self.free_seats = list(reversed(range(seats)))
        self.leaving: list[int] = []
        self.planned: list[tuple[Row, int]] = []
        self.admitted: list[tuple[int, int]] = []
        self.preempted: list[int] = []
        self.sharing: list[Row] = []  # as if prompts had equal shares

    def add(self, request: int, prompt: list[int], max_tokens: int, priority: int) -> None:
        row = Row(request, list(prompt), len(prompt), max_tokens, priority)
        self.waiting.append(row)
        self.arrivals.append(row)

    def step(self, sampled: dict[int, int]) -> list[tuple[int, int]]:
        """Apply what the last plan sampled; the new plan as (request, tokens to compute)."""
        self.reap(sampled)
        self.admitted, self.preempted = [], []
        needed = sum(self.grows(row) for row in self.running)
        if needed > self.available():
            self.preempt()
            prefills = self.grow_and_find_prefills()
        else:
            prefills = self.grow_and_find_prefills()
            self.admit(prefills)
            self.reserved = 0
            fresh = self.take(sum(row.fresh for row in prefills))
            for row in prefills:
                row.blocks += [fresh.pop() for _ in range(row.fresh)]
                row.fresh = 0
        decodes = [row for row in self.running if row not in prefills]
        decodes.sort(key=lambda row: row.seat)
        shares = self.share(prefills, self.budget - len(decodes))
        self.planned = [(row, 1) for row in decodes]
        self.planned += [(row, shares[row]) for row in prefills if shares[row]]
        return [(row.request, count) for row, count in self.planned]

    def reap(self, sampled: dict[int, int]) -> None:
        for row, count in self.planned:
            row.computed += count
            if row.request in sampled:
                row.tokens.append(sampled[row.request])
        self.publish_all([row for row, _ in self.planned])
        for row, _ in self.planned:
            generated = len(row.tokens) - row.prompt
            if generated >= row.max_tokens or len(row.tokens) >= self.longest:
                self.remove(row)
        for request in self.leaving:
            for row in [*self.running, *self.waiting]:
                if row.request == request:
                    self.remove(row)
        self.leaving = []

    def admit(self, prefills: list[Row]) -> None:
        most, considered = self.seats - len(self.running) + 16, 0
        for row in sorted(self.waiting, key=lambda each: each.priority):
            tokens = self.budget - (len(self.running) - len(prefills))
            promised = sum(min(other.remaining, self.size) for other in prefills)
            if len(self.running) == self.seats or considered == most or promised >= tokens:
                return
            considered += 1
            hits: list[Block] = []
            while (len(hits) + 1) * self.size < len(row.tokens):
                place = self.place(row, len(hits), hits[-1].name if hits else None)
                if place not in self.index:
                    break
                hits.append(self.index[place])
            fresh = -(-len(row.tokens) // self.size) - len(hits)
            unheld = sum(block.references == 0 for block in hits)
            if self.available() - unheld - fresh < (self.keep if self.running else 0):
                return
            wanted = len(row.tokens) - len(hits) * self.size
            long = sum(self.size for other in prefills if other.remaining > self.size)
            if promised + min(wanted, self.size) > tokens or (
                wanted > self.size and long and long + self.size > tokens // 2
            ):
                continue
            for block in hits:
                self.hold(block)
            row.blocks, row.fresh = hits, fresh
            self.reserved += fresh
            row.computed, row.published = len(hits) * self.size, len(hits)
            row.end = hits[-1] if hits else None
            row.end_name = row.end.name if row.end else None
            self.waiting.remove(row)
            row.seat = self.free_seats.pop()
            if row.rank < 0:
                row.rank = self.ranks
                self.ranks += 1
            self.running = sorted([*self.running, row], key=lambda each: each.rank)
            prefills.append(row)
            self.admitted.append((row.request, row.computed))

    def preempt(self) -> None:
        oldest = min(self.running, key=self.arrivals.index)
        order = [row for row in reversed(self.running) if row is not oldest]
        order = [*sorted(order, key=lambda each: -each.priority), oldest]
        victims: list[Row] = []
        for row in order:
            victims.append(row)
            if self.enough(victims):
                break
        for row in reversed(victims[:-1]):
            fewer = [other for other in victims if other is not row]
            if self.enough(fewer):
                victims = fewer
        for row in victims:
            self.running.remove(row)
            self.free_seats.append(row.seat)
            self.release(row.blocks)
            row.blocks, row.computed, row.published, row.end = [], 0, 0, None
            self.waiting = sorted([*self.waiting, row], key=self.arrivals.index)
            self.preempted.append(row.request)

    def enough(self, victims: list[Row]) -> bool:
        stay = [row for row in self.running if row not in victims]
        held = {block for row in stay for block in row.blocks}
        freed = {block for row in victims for block in row.blocks} - held
        return self.available() + len(freed) >= sum(self.grows(row) for row in stay)

    def grows(self, row: Row) -> int:
        return int(len(row.tokens) > len(row.blocks) * self.size)

    def grow_and_find_prefills(self) -> list[Row]:
        growing = [row for row in self.running if self.grows(row)]
        for row, block in zip(growing, self.take(len(growing)), strict=True):
            row.blocks.append(block)
        return [row for row in self.running if row.remaining > 1]

    def share(self, rows: list[Row], budget: int) -> dict[Row, int]:
        """All that it wants to each in turn, first to whom equal shares would complete first."""
        self.sharing = [row for row in self.sharing if row.complete or row in rows]
        for row in rows:
            if row.complete or row not in self.sharing:
                row.due, row.complete = row.remaining * UNIT, False
                self.sharing = [*(each for each in self.sharing if each is not row), row]
        shares, left = {}, budget
        for row in sorted(rows, key=lambda each: (each.due, each.rank)):
            shares[row] = min(row.remaining, left)
            left -= shares[row]
            row.complete = row.remaining - shares[row] <= 1
            if row.complete:
                row.due = max(0, row.due - (row.remaining - shares[row]) * UNIT)
        if all(row.complete for row in rows):
            self.sharing = []
        self.share_equally(budget * UNIT)
        unfinished = [row for row in rows if not row.complete]
        self.forgive(UNIT * sum(row.remaining - shares[row] for row in unfinished))
        return shares

    def forgive(self, most: int) -> None:
        """All together never owe more than there is to compute; the complete ones are let off."""
        excess = sum(row.due for row in self.sharing) - most
        complete = [row for row in self.sharing if row.complete]
        while excess > 0 and complete:
            row = max(complete, key=lambda each: (each.due, each.rank))
            complete.remove(row)
            row.due, excess = max(0, row.due - excess), excess - row.due
        self.sharing = [row for row in self.sharing if row.due or not row.complete]

    def share_equally(self, budget: int) -> None:
        """As much to each, round after round, until nobody wants more or nothing is left."""
        by_due = sorted(self.sharing, key=lambda each: (each.due, each.rank))
        while budget and (hungry := [row for row in by_due if row.due]):
            each = max(1, budget // len(hungry))
            for row in hungry:
                got = min(row.due, each, budget)
                row.due -= got
                budget -= got
        self.sharing = [row for row in self.sharing if row.due or not row.complete]

    def remove(self, row: Row) -> None:
        self.release(row.blocks)
        if row in self.running:
            self.free_seats.append(row.seat)
            self.running.remove(row)
        else:
            self.waiting.remove(row)

    def available(self) -> int:
        return self.free + len(self.cached) - self.reserved

    def take(self, num: int) -> list[Block]:
        missing = max(0, num - self.free)
        oldest, self.cached = self.cached[:missing], self.cached[missing:]
        self.free += missing - num
        for block in oldest:
            if block.place is not None:
                self.hide(block)
        return [Block() for _ in range(num)]

    def hold(self, block: Block) -> None:
        if block.references == 0:
            self.cached.remove(block)
        block.references += 1

    def release(self, blocks: list[Block]) -> None:
        for block in reversed(blocks):
            block.references -= 1
            if block.references == 0 and block.place is None:
                self.free += 1
            elif block.references == 0:
                self.cached.append(block)

    def lives(self, row: Row) -> bool:
        return row.end is None or (row.end.place is not None and row.end.name is row.end_name)

    def place(self, row: Row, depth: int, after: object) -> Place:
        return after, tuple(row.tokens[depth * self.size : (depth + 1) * self.size])

    def is_new(self, row: Row) -> bool:
        """Whether nobody has published what the row's next full block holds."""
        return self.lives(row) and self.place(row, row.published, row.end_name) not in self.index

    def hide(self, block: Block) -> None:
        """With all that was published behind it."""
        assert block.place is not None
        del self.index[block.place]
        block.place = None
        for other in [each for (after, _), each in self.index.items() if after is block.name]:
            if other.place is not None:
                self.hide(other)
            if other in self.cached:
                self.cached.remove(other)
                self.free += 1

    def publish_all(self, rows: list[Row]) -> None:
        """First those with nothing in their way, so that the others may find theirs published."""
        late: list[Row] = []
        for row in rows:
            if self.is_new(row):
                self.publish(row)
            else:
                late.append(row)
        for row in late:
            if not self.lives(row) and self.has_more(row):
                row.published, row.end, row.end_name = 0, None, None
            self.publish(row)

    def has_more(self, row: Row) -> bool:
        return (row.published + 1) * self.size <= row.computed

    def publish(self, row: Row) -> None:
        while self.has_more(row):
            block, place = row.blocks[row.published], self.place(row, row.published, row.end_name)
            if place not in self.index:
                if block.place is not None:
                    self.hide(block)
                self.index[place], block.place, block.name = block, place, object()
            row.end = self.index[place]
            row.end_name = row.end.name
            row.published += 1
