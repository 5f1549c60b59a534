"""Planted faults: the scheduler with one thing wrong, as it might have been written.

Each mutant is one replacement in one file. Its original text must occur there exactly once, so that
the list breaks loudly when the code moves on. `FAST_PROOF` kills every one of them within seconds;
`test_mutants` shows it.
"""

from __future__ import annotations

from typing import NamedTuple

# In this order, up to the first failure: first a bit of everything, then what it rarely meets
FAST_PROOF = (
    "tests/scheduler/test_fast_proof.py",
    "tests/scheduler/test_victims.py",
    "tests/scheduler/test_waiting.py",
    "tests/scheduler/test_turns.py",
    "tests/scheduler/test_planning.py",
    "tests/scheduler/test_host_pool.py",
    "tests/scheduler/test_credits.py",
    "tests/scheduler/test_eviction_queue.py",
    "tests/scheduler/test_prefix_index.py",
    "tests/scheduler/test_blocks.py::test_what_continued_an_unfindable_block_is_free_at_once",
    "tests/scheduler/test_seating.py",
    "tests/scheduler/test_assembly.py",
    "tests/scheduler/test_vanguard.py::test_it_ends_before_the_first_that_lacks_blocks",
    "tests/scheduler/test_vanguard.py"
    "::test_what_others_hold_costs_nothing_and_what_is_found_counts_for_each",
    "tests/scheduler/test_vanguard.py::test_it_ends_before_the_first_that_lacks_tokens",
    "tests/scheduler/test_vanguard.py::test_one_token_is_left_for_each_of_them",
    "tests/scheduler/test_vanguard.py"
    "::test_rows_that_differ_in_more_than_length_are_left_to_be_looked_at",
    "tests/scheduler/test_displacement.py::test_a_better_request_takes_a_seat_in_the_same_step",
    "tests/scheduler/test_displacement.py::test_equals_and_worse_ones_displace_nobody",
    "tests/scheduler/test_budget.py"
    "::test_choices_share_the_prompt_and_copy_its_partial_block_at_the_first_write",
    "tests/scheduler/test_budget.py"
    "::test_with_credit_for_one_choice_even_the_oldest_copies_while_the_others_still_share",
    "tests/scheduler/test_budget.py::test_a_parked_row_does_not_grow_but_keeps_its_promise",
    "tests/scheduler/test_admission.py"
    "::test_a_request_enters_beside_others_only_with_the_tails_of_all_its_choices",
    "tests/scheduler/test_admission.py"
    "::test_those_who_starve_enter_in_order_of_arrival_whatever_they_score",
    "tests/scheduler/test_scheduler.py::test_what_a_failed_row_computed_is_never_found_again",
    "tests/scheduler/test_scheduler.py::test_starving_requests_take_every_fourth_admission",
    "tests/scheduler/test_scheduler.py::test_a_resumed_request_overtakes_nobody",
    "tests/scheduler/test_reaping.py"
    "::test_a_deadline_ends_all_choices_of_a_prompt_that_is_not_complete",
    "tests/scheduler/test_reaping.py"
    "::test_a_failed_row_keeps_nobody_from_publishing_the_same_prompt",
    "tests/scheduler/test_reaping.py"
    "::test_a_row_does_not_publish_again_what_it_shared_with_a_failed_one",
    "tests/scheduler/test_preemption.py::test_a_swapped_row_goes_on_where_it_was",
    "tests/scheduler/test_preemption.py::test_a_swapped_row_that_leaves_gives_its_host_blocks_back",
    "tests/scheduler/test_preemption.py"
    "::test_the_host_copy_is_dropped_when_only_the_last_shared_block_was_evicted",
)


class Mutant(NamedTuple):
    """One fault."""

    name: str
    file: str  # below the repository's root
    original: str
    mutated: str


MUTANTS = (
    # The block pool
    Mutant(
        "a block of two tables released together is freed twice",
        "scheduler/blocks.py",
        "return _last_of_each(blocks[left == 0])",
        "return blocks[left == 0]",
    ),
    Mutant(
        "a victim's blocks are released twice",
        "scheduler/preemption.py",
        "stores.pool.release(table.blocks(row))",
        "stores.pool.release(table.blocks(row), table.blocks(row))",
    ),
    Mutant(
        "the pool promises one block more than it has",
        "scheduler/blocks.py",
        "return self._num_free + self._cached.num - self._num_reserved",
        "return self._num_free + self._cached.num - self._num_reserved + 1",
    ),
    Mutant(
        "the last free block is never handed out",
        "scheduler/blocks.py",
        "return self._num_free + self._cached.num - self._num_reserved",
        "return max(0, self._num_free + self._cached.num - self._num_reserved - 1)",
    ),
    Mutant(
        "allocation evicts one block too few",
        "scheduler/blocks.py",
        "self._evict(max(num - self._num_free, ahead))",
        "self._evict(max(num - self._num_free - 1, ahead))",
    ),
    Mutant(
        "reserved blocks still count as available",
        "scheduler/blocks.py",
        "return self._num_free + self._cached.num - self._num_reserved",
        "return self._num_free + self._cached.num",
    ),
    Mutant(
        "a pinned block may still be evicted",
        "scheduler/blocks.py",
        "        self._cached.discard(unheld)\n        self._num_held += len(unheld)\n",
        "        self._num_held += len(unheld)\n",
    ),
    Mutant(
        "a table ages from its head",
        "scheduler/blocks.py",
        "np.concatenate([table[::-1] for table in tables], dtype=np.intp)",
        "np.concatenate(tables, dtype=np.intp)",
    ),
    Mutant(
        "the newest release is evicted first",
        "scheduler/eviction_queue.py",
        "self._runs.popleft()",
        "self._runs.pop()",
    ),
    Mutant(
        "a block that was pinned meanwhile is evicted when its old turn comes",
        "scheduler/eviction_queue.py",
        "queued = where(self._stamps[head] == stamps[: len(head)])",
        "queued = where(self._stamps[head] != _ABSENT)",
    ),
    # Prefixes
    Mutant(
        "an evicted block keeps its key",
        "scheduler/blocks.py",
        "behind = self.index.remove(first)",
        "behind = first[:0]",
    ),
    Mutant(
        "rows that wait are not told of evictions",
        "scheduler/prefix_index.py",
        "            self.watcher.on_unpublished(gone)",
        "            self.watcher.on_unpublished(gone[:0])",
    ),
    Mutant(
        "what continued an evicted block stays published",
        "scheduler/prefix_index.py",
        "while len(wave := self._unpublish(wave)):",
        "while len(wave := self._unpublish(wave)[:0]):",
    ),
    Mutant(
        "what became unfindable while it was cached is lost",
        "scheduler/blocks.py",
        "        self._set_free(cached)\n",
        "",
    ),
    Mutant(
        "rows that wait are not told of publications",
        "scheduler/waiting_prefixes.py",
        "if not self._wanted:",
        "if self._wanted:",
    ),
    Mutant(
        "a block is believed to continue any prefix",
        "scheduler/prefix_index.py",
        "lives = self.names[parents] == names ",
        "lives = self.names[parents] > _UNPUBLISHED ",
    ),
    Mutant(
        "the tokens behind a key are not compared",
        "scheduler/prefix_index.py",
        "equal = (self._tokens[blocks] == tokens[: len(blocks)]).all(axis=1)",
        "equal = np.ones(len(blocks), dtype=bool)",
    ),
    Mutant(
        "an evicted heir is still found",
        "scheduler/prefix_index.py",
        "lives = (names != _UNPUBLISHED) & (self._after[heirs] == before)",
        "lives = (names == names) & (self._after[heirs] == before)",
    ),
    Mutant(
        "what an evicted heir holds next is believed to be an heir",
        "scheduler/prefix_index.py",
        "lives = (names != _UNPUBLISHED) & (self._after[heirs] == before)",
        "lives = names != _UNPUBLISHED",
    ),
    Mutant(
        "an evicted branch is still found",
        "scheduler/prefix_index.py",
        "            del self._branches[place]\n",
        "",
    ),
    Mutant(
        "what is published together continues one another",
        "scheduler/prefix_index.py",
        "heir[starts - 1] = _NO_BLOCK",
        "heir[starts - 1] = blocks[starts]",
    ),
    Mutant(
        "of runs that begin alike all are published",
        "scheduler/prefix_index.py",
        "        done[plain] = self._heir[ends] == heirs\n",
        "",
    ),
    Mutant(
        "of runs that begin alike the last one is found",
        "scheduler/prefix_index.py",
        "self._heir[ends[::-1]] = heirs[::-1]",
        "self._heir[ends] = heirs",
    ),
    Mutant(
        "rows that wait behind a block are not told what continues it",
        "scheduler/prefix_index.py",
        " & (self.awaited[parents] == 0)",
        "",
    ),
    Mutant(
        "equal continuations of a block are both published where rows wait",
        "scheduler/prefix_index.py",
        "if len(known) or name in continued:",
        "if len(known):",
    ),
    Mutant(
        "the whole prompt may be found, with no token left to compute",
        "scheduler/waiting_prefixes.py",
        "return (int(self._table.num_tokens[row]) - 1) // self._table.block_size",
        "return int(self._table.num_tokens[row]) // self._table.block_size",
    ),
    Mutant(
        "a block is published before it is full",
        "scheduler/publishing.py",
        "full = table.computed_tokens[rows] // table.block_size",
        "full = -(-table.computed_tokens[rows] // table.block_size)",
    ),
    Mutant(
        "what a failed row computed is published all the same",
        "scheduler/reaping.py",
        "self._publisher.publish(np.delete(rows, plan.samples[failed]))",
        "self._publisher.publish(rows)",
    ),
    Mutant(
        "what a failed row published stays findable",
        "scheduler/reaping.py",
        "stores.pool.distrust(table.blocks(row))",
        "stores.pool.distrust(table.blocks(row)[:0])",
    ),
    Mutant(
        "what a failed row held may be published by who shares it",
        "scheduler/blocks.py",
        "        self._distrusted[blocks] = True\n",
        "",
    ),
    # Choices and copy-on-write
    Mutant(
        "copy-on-write is skipped",
        "scheduler/budget.py",
        "growth[sharing] = _copies(stores, rows[sharing])",
        "growth[sharing] = 0",
    ),
    Mutant(
        "copy-on-write copies the wrong way round",
        "scheduler/budget.py",
        "plan.copies.on_write.append((int(tail[0]), copy))",
        "plan.copies.on_write.append((copy, int(tail[0])))",
    ),
    Mutant(
        "the oldest of several choices copies its tail too",
        "scheduler/budget.py",
        "copies[indices[0]] = 0",
        "copies[indices[0]] = 1",
    ),
    Mutant(
        "the oldest writes a tail that somebody without credit still shares",
        "scheduler/budget.py",
        "if len(indices) == stores.pool.references[tail]:",
        "if len(indices) <= stores.pool.references[tail]:",
    ),
    Mutant(
        "a fork adds no references",
        "scheduler/reaping.py",
        "                stores.pool.pin(table.blocks(row))\n",
        "",
    ),
    Mutant(
        "a fork gives every choice the first one's seat",
        "scheduler/request.py",
        "seats=(self.seats[rank],)",
        "seats=(self.seats[0],)",
    ),
    Mutant(
        "choices draw their first tokens with one seat's settings",
        "scheduler/assembly.py",
        "for each in cold for seat in each.seats]",
        "for each in cold for seat in each.seats[:1] * len(each.seats)]",
    ),
    Mutant(
        "a prompt of several choices gets a single seat back",
        "scheduler/table.py",
        "            self._free_seats += cold.seats[::-1]\n",
        "            self._free_seats += cold.seats[:1]\n",
    ),
    Mutant(
        "rows of several choices are forgotten when one of them forks",
        "scheduler/table.py",
        "        self.num_several -= 1\n",
        "        self.num_several = 0\n",
    ),
    Mutant(
        "shared tails are forgotten once somebody has copied one",
        "scheduler/table.py",
        "self.may_share_tails = bool(self.shares_tail.any())",
        "self.may_share_tails = False",
    ),
    Mutant(
        "choices are promised no tails of their own",
        "scheduler/candidates.py",
        "np.where(choices > 1, full + choices - blocks, 0)",
        "np.zeros_like(blocks)",
    ),
    Mutant(
        "the choices of a prompt get seats that are still free",
        "scheduler/table.py",
        "tuple([self._free_seats.pop() for _ in cold.choices])",
        "tuple(self._free_seats[: -len(cold.choices) - 1 : -1])",
    ),
    Mutant(
        "found blocks are not pinned",
        "scheduler/seating.py",
        "self._stores.pool.pin(entry.found)",
        "self._stores.pool.pin(entry.found[:0])",
    ),
    Mutant(
        "found blocks are reserved once more",
        "scheduler/seating.py",
        "return candidate.blocks - len(entry.found)",
        "return candidate.blocks",
    ),
    Mutant(
        "who enters late is promised what others were promised before",
        "scheduler/seating.py",
        "min(promise, max(0, stores.pool.num_available - promised))",
        "min(promise, max(0, stores.pool.num_available))",
    ),
    Mutant(
        "a row publishes what it found as if it continued nothing",
        "scheduler/seating.py",
        "ends.append(index.end(index.root(candidate.cold.salt), entry.found))",
        "ends.append(index.root(candidate.cold.salt))",
    ),
    # Cancels, deadlines, ends
    Mutant(
        "a cancel is lost while the row is in flight",
        "scheduler/scheduler.py",
        "if departure.request in self._stores.table:",
        "if departure.request in self._stores.table and not self._planned:",
    ),
    Mutant(
        "a cancel of a swapped row is lost",
        "scheduler/reaping.py",
        "if row is None:\n                continue",
        "if row is None or table.state[row] == State.SWAPPED:\n                continue",
    ),
    Mutant(
        "a row that ends while swapped keeps its host blocks",
        "scheduler/stores.py",
        "            if cold.host is not None:\n",
        "            if cold.host is not None and not cold.host.copied:\n",
    ),
    Mutant(
        "deadlines of waiting rows are ignored",
        "scheduler/reaping.py",
        "(table.state != State.FREE))",
        "(table.state != State.FREE) & ~table.waits)",
    ),
    Mutant(
        "one token more than max_tokens",
        "scheduler/reaping.py",
        "codes[generated >= table.max_tokens[rows]]",
        "codes[generated > table.max_tokens[rows]]",
    ),
    # Leaving and coming back
    Mutant(
        "a released host block is handed out in the same step",
        "scheduler/host_pool.py",
        "self._released.extend(blocks)",
        "self._free.extend(blocks)",
    ),
    Mutant(
        "swapping in skips a block",
        "scheduler/seating.py",
        "for index, host in entry.copied]",
        "for index, host in entry.copied[1:]]",
    ),
    Mutant(
        "swapping out drops the partial tail",
        "scheduler/preemption.py",
        "blocks = table.blocks(row)[: -(-computed // table.block_size)]",
        "blocks = table.blocks(row)[: computed // table.block_size]",
    ),
    Mutant(
        "a swapped row does not notice that a block it shared is gone",
        "scheduler/admission.py",
        "host.shared[-1] >= len(found)",
        "host.shared[-1] > len(found)",
    ),
    Mutant(
        "a row resumes from the host one token too far on",
        "scheduler/admission.py",
        "return Entry(found, copied, host.computed, from_host=True)",
        "return Entry(found, copied, host.computed + 1, from_host=True)",
    ),
    Mutant(
        "a row resumes from the host one token too early",
        "scheduler/admission.py",
        "return Entry(found, copied, host.computed, from_host=True)",
        "return Entry(found, copied, host.computed - 1, from_host=True)",
    ),
    Mutant(
        "a row resumes from its prefix one block too far on",
        "scheduler/candidates.py",
        "return cls(found, (), len(found) * block_size)",
        "return cls(found, (), (len(found) + 1) * block_size)",
    ),
    Mutant(
        "a resumed row forgets what it had generated",
        "scheduler/seating.py",
        "remaining = candidate.num_tokens - entry.computed",
        "remaining = int(stores.table.prompt_tokens[candidate.row]) - entry.computed",
    ),
    Mutant(
        "a resumed row gets blocks for its prompt alone",
        "scheduler/candidates.py",
        "-(-num_tokens // table.block_size)",
        "-(-table.prompt_tokens[rows] // table.block_size)",
    ),
    # Credit
    Mutant(
        "credit is spent twice",
        "scheduler/credits.py",
        "np.subtract.at(self.left, slots[slots != UNLIMITED], 1)",
        "np.subtract.at(self.left, slots[slots != UNLIMITED], 2)",
    ),
    Mutant(
        "credit is never spent",
        "scheduler/reaping.py",
        "credits.spend(table.credit[rows])",
        "credits.spend(table.credit[rows[:0]])",
    ),
    Mutant(
        "parked rows are scheduled",
        "scheduler/table.py",
        "return rows[~self.parked[rows]] if self.num_parked else rows",
        "return rows",
    ),
    Mutant(
        "rows of one stream spend the same credit in one step",
        "scheduler/credits.py",
        "            self._reserved[slot] += num",
        "            self._reserved[slot] = num",
    ),
    # Who enters
    Mutant(
        "overtakes are not counted",
        "scheduler/admission.py",
        "        self._count_overtakes(waiting, columns)\n",
        "",
    ),
    Mutant(
        "those who enter together leave nothing free",
        "scheduler/vanguard.py",
        "left = pool.num_available - stores.watermark - promised",
        "left = pool.num_available",
    ),
    Mutant(
        "those who enter together are seen without what others may still need",
        "scheduler/vanguard.py",
        "if left < kept:",
        "if left < 0:",
    ),
    Mutant(
        "what those who enter together found costs nothing even if nobody holds it",
        "scheduler/vanguard.py",
        "left += len(found) - pool.num_unheld(found)",
        "left += len(found)",
    ),
    Mutant(
        "those who enter together take more tokens than there are",
        "scheduler/planning.py",
        "            if unpromised < 0:\n",
        "            if unpromised < -size:\n",
    ),
    Mutant(
        "starving rows wait behind all others",
        "scheduler/turns.py",
        "if not lead and entered < len(needy):",
        "if False:",
    ),
    Mutant(
        "starving rows take the turns of other tenants",
        "scheduler/turns.py",
        "yield tenant, own, needy[start : min(end, start + len(own))]",
        "yield tenant, own, needy[: len(own)]",
    ),
    Mutant(
        "starving rows enter in any order",
        "scheduler/turns.py",
        "needy[earliest(arrivals.take(needy), len(order))]",
        "needy[::-1][: len(order)]",
    ),
    Mutant(
        "the watermark is waived beside others and kept on an idle engine",
        "scheduler/admission.py",
        "        if plan.is_empty:\n            keep = spared = 0",
        "        if not plan.is_empty:\n            keep = spared = 0",
    ),
    Mutant(
        "admission does not count the decodes of the step",
        "scheduler/planning.py",
        "return self.token_budget - len(self.decodes)",
        "return self.token_budget",
    ),
    Mutant(
        "admission goes beyond the token budget",
        "scheduler/planning.py",
        "if min(remaining, self._block_size) > self._unpromised:",
        "if self._unpromised < 0:",
    ),
    # Who leaves
    Mutant(
        "growth at a block edge is seen a token late",
        "scheduler/budget.py",
        "table.num_tokens[rows] > table.blocks_held[rows] * table.block_size",
        "table.num_tokens[rows] > table.blocks_held[rows] * table.block_size + 1",
    ),
    Mutant(
        "the cap on preemptions is ignored",
        "scheduler/victims.py",
        "ranks[table.preemptions[rows] >= max_preemptions] = _CAPPED",
        "ranks[table.preemptions[rows] >= max_preemptions] = _FREE",
    ),
    Mutant(
        "the oldest admission leaves first",
        "scheduler/victims.py",
        "np.lexsort((-table.admission[rows],",
        "np.lexsort((table.admission[rows],",
    ),
    Mutant(
        "the newest is protected in place of the oldest",
        "scheduler/victims.py",
        "ranks[int(arrivals.argmin())] = _OLDEST",
        "ranks[int(np.where(runs, arrivals, -1).argmax())] = _OLDEST",
    ),
    Mutant(
        "victims who turn out not to be needed leave too",
        "scheduler/victims.py",
        "for index in reversed(chosen[:-1]):",
        "for index in chosen[:0]:",
    ),
    Mutant(
        "equals are displaced",
        "scheduler/preemption.py",
        "return rows[margins > 0]",
        "return rows[margins >= 0]",
    ),
    Mutant(
        "a displaced row stays in the plan",
        "scheduler/preemption.py",
        "        plan.withdraw(row)\n",
        "",
    ),
    # The plan
    Mutant(
        "positions of chunks are off by one",
        "scheduler/plan.py",
        "cumsum(dtype=np.int32) + self.num_new",
        "cumsum(dtype=np.int32) + self.num_new - 1",
    ),
    Mutant(
        "slots ignore the block table",
        "scheduler/plan.py",
        "blocks=self.tables[seats, places]",
        "blocks=self.tables[seats, 0]",
    ),
    Mutant(
        "a row samples a token before its prompt is complete",
        "scheduler/assembly.py",
        "context + counts == table.num_tokens[rows]",
        "context + counts >= table.num_tokens[rows] - 1",
    ),
)
