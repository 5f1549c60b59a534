"""Prefills: how prompts that are being computed share a step's tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.columns import IntColumn

Counts = npt.NDArray[np.int64]

# Parts of a token that shares are counted in: whole ones would leave a long prompt without any as
# soon as more prompts share a step than it has tokens.
UNIT = 1 << 20


class Prefills:
    """Computes prompts one after another, in the order in which equal shares would complete them.

    While none leaves, none is complete later than if all shared every step equally, and most are
    much earlier: of eight equal prompts all eight would end together. This is the Fair Sojourn
    Protocol of Friedman and Henderson, "Fairness and Efficiency in Web Server Protocols",
    SIGMETRICS 2003. Where a policy limits what one prompt computes in a step, the order is the
    same, and nothing is guaranteed. Every prompt has a share of every step and so comes to its
    turn, however many shorter ones follow.

    A prompt that is complete before its shares would have completed it goes on taking them, or
    those before it would seem nearer to their ends than they are to whoever comes next; but all
    together never owe more than there is left to compute. A prompt that is left out of a step, as
    one that loses its seat, begins anew.
    """

    def __init__(self) -> None:
        # What equal shares would still have to compute, in units, by the admission of the row
        self._due: dict[int, int] = {}
        self._due_of_complete: dict[int, int] = {}

    def clear(self) -> None:
        """No prompt is being computed: what equal shares would still owe is nobody's concern."""
        self._due.clear()
        self._due_of_complete.clear()

    def split(self, admissions: IntColumn, remaining: Counts, budget: int, chunk: int) -> Counts:
        """Share out the tokens of one step, which then count as computed.

        Args:
            admissions: of the row of each prompt.
            remaining: tokens that each has to compute, at least one.
            budget: tokens in all.
            chunk: tokens of one prompt at most.

        Returns:
            Tokens for each prompt, which may be none.
        """
        keys, wanted = admissions.tolist(), np.minimum(remaining, chunk)
        lefts = zip(keys, (remaining * UNIT).tolist(), strict=True)
        due = np.array([self._due.get(key, left) for key, left in lefts], dtype=np.int64)
        order = np.lexsort((admissions, due))
        shares = one_after_another(wanted, order, budget)
        # The last token of a prompt may be computed as decodes are, which is not for us to share
        left = remaining - shares
        is_complete = left <= 1
        if is_complete.all():
            self.clear()
        else:
            due[is_complete] = np.maximum(due - left * UNIT, 0)[is_complete]
            self._pass(keys, due, is_complete.tolist(), budget, min(chunk, budget))
            self._forgive(int(left[~is_complete].sum()) * UNIT)
        return shares

    def _pass(
        self, keys: list[int], due: Counts, is_complete: list[bool], budget: int, chunk: int
    ) -> None:
        """Let equal shares have their step too."""
        present = set(keys)
        ahead = [each for each in self._due_of_complete.items() if each[0] not in present]
        everybody = np.array(keys + [key for key, _ in ahead], dtype=np.int64)
        left = np.concatenate((due, np.array([count for _, count in ahead], dtype=np.int64)))
        order = np.lexsort((everybody, left))
        left[order] -= fair_shares(np.minimum(left[order], chunk * UNIT), budget * UNIT)
        self._due, self._due_of_complete = {}, {}
        complete = is_complete + [True] * len(ahead)
        for key, count, has_ended in zip(everybody.tolist(), left.tolist(), complete, strict=True):
            if not has_ended:
                self._due[key] = count
            elif count:
                self._due_of_complete[key] = count

    def _forgive(self, most: int) -> None:
        """Let the complete ones owe no more than brings all to `most`, the largest first.

        Who leaves amid a prompt takes what is left of it along, of which shares had more or less.
        """
        excess = sum(self._due.values()) + sum(self._due_of_complete.values()) - most
        if excess <= 0:
            return
        for key, count in sorted(self._due_of_complete.items(), key=lambda each: each[::-1])[::-1]:
            self._due_of_complete[key] -= min(excess, count)
            excess -= min(excess, count)
            if self._due_of_complete[key]:
                break
            del self._due_of_complete[key]


def one_after_another(wanted: Counts, order: npt.NDArray[np.intp], budget: int) -> Counts:
    """Give each in turn what it wants, until nothing is left of `budget`."""
    shares = np.zeros_like(wanted)
    in_turn = wanted[order]
    shares[order] = np.clip(budget - (in_turn.cumsum() - in_turn), 0, in_turn)
    return shares


def fair_shares(wanted: Counts, budget: int) -> Counts:
    """Split `budget` tokens so that nobody gets more than wanted and nobody could get more fairly.

    Max-min fairness by water-filling: who wants less than an equal share gets all of it, the rest
    share what is left. What does not divide goes to the first in order.
    """
    if wanted.sum() <= budget:
        return wanted.copy()
    shares = np.zeros_like(wanted)
    left = budget
    order = np.argsort(wanted, kind="stable")
    for rank, index in enumerate(order):
        equal = left // (len(order) - rank)
        if wanted[index] > equal:
            rest = np.sort(order[rank:])
            shares[rest] = equal
            shares[rest[: left - equal * len(rest)]] += 1
            break
        shares[index] = wanted[index]
        left -= int(wanted[index])
    return shares
