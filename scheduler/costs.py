"""What a victim's way back costs on this machine, learned from the steps as they are measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cadenza.scheduler.columns import where
from cadenza.scheduler.plan import Int32Array, Int64Array, StepPlan, StepTimes

FloatArray = npt.NDArray[np.float64]

STEP_DECAY = 0.98  # weight of a step against the next of its kind; about 50 steps count
STEP_SHARE = 0.1  # of the newest step in the mean time of a step
COPY_SHARE = 0.2  # of the newest copy in the mean
MOST_BETWEEN_FITS = 256  # steps after which `token_s` is fitted again; earlier at first
AT_ONCE = 32  # steps added to the sums together: twenty small array operations less a step
# Pull towards the initial guess, against a weight of 1 for all that was measured. It decides only
# what the steps leave open, and there the terms that all steps share give way first.
PULLS = np.array([1e-6, 1e-3, 1e-6, 1e-3])

_TOKENS, _WORK = 1, 3  # places of the coefficients that matter here, in the order of `_features`


class CostModel:
    """Seconds of the engine's time to compute tokens again, or to copy blocks out and in.

    A step's forward time is fitted as

        forward_s = c + a_tok * tokens + c_ctx * contexts + a_att * work

    by least squares, weighted by 1 / forward_s and by age, with no coefficient below 0; `contexts`
    is the sum of k over decoding rows, `work` the sum of p * (k + p / 2) over rows that compute
    p > 1 tokens after k. Decodes read their context from memory where prefills compute on it: in
    fits to kernel profiles of an 8B model on two GPUs a pair of tokens cost 47 and 62 times as much
    in a decode, so that one coefficient for both would overstate a_att. Pure decodes fade only
    against each other, and so do steps with a prefill: an hour of decoding does not wash out what
    prefills have shown. Then, with T_rec and T_copy of the usual cost model,

        recompute_s = a_tok * n + a_att * (n * h + n**2 / 2)    n tokens after h cached ones
        swap_s = blocks * (seconds a block out + seconds a block in)

    Left out, and what that does:
    - Overlap. Copies that hide behind a forward pass are charged in full, since a runner measures
      copies and pass one after the other. It overstates a swap.
    - The knee, below which tokens ride along with decodes for nothing. Finding it means scanning
      for it; it differs with the batch. It overstates a recompute of few tokens in a busy step.
    - The fixed cost of a copy command, which is in the mean a block costs as copies happen to be
      batched; and interference of copies with the pass.

    Neither clock nor torch is used here. With nothing measured, the initial guesses decide.
    """

    def __init__(self, *, token_s: float = 0.0, copy_block_s: float = 0.0) -> None:
        """Start from guesses, such as those of a warm-up.

        Args:
            token_s: seconds a prefilled token takes; 0: unknown.
            copy_block_s: seconds to copy a block, in either direction; 0: unknown.

        Raises:
            ValueError: a guess is negative or not finite.
        """
        for name, guess in (("token_s", token_s), ("copy_block_s", copy_block_s)):
            if not 0 <= guess < np.inf:
                raise ValueError(f"{name} {guess} is no number of seconds")
        self._guess = np.zeros(4)
        self._guess[_TOKENS] = token_s
        self._coefficients: FloatArray | None = self._guess
        self._fitted = self._guess
        self._decodes, self._prefills = _Sums(), _Sums()
        self._out_s = self._in_s = copy_block_s  # a block
        self._num_steps, self._next_fit = 0, 1
        self.token_s = token_s  # seconds a prefilled token adds to a step; 0: unknown
        self.context_s = self.fixed_s = 0.0  # seconds a token read by a decode, and a step; or 0
        self.step_s = 0.0  # mean forward time of recent steps, in seconds; 0: unknown

    def observe(self, plan: StepPlan, times: StepTimes) -> None:
        """Learn from one executed plan. Times that are 0 or not finite were not measured."""
        copies = plan.copies
        self._out_s = _mean(self._out_s, len(copies.swap_out), times.swap_out_s)
        self._in_s = _mean(self._in_s, len(copies.swap_in), times.swap_in_s)
        if plan.num_rows and 0 < times.forward_s < np.inf:
            alike = self._decodes if plan.num_tokens == plan.num_rows else self._prefills
            alike.add(_Pass(plan.num_new, plan.num_context, times.forward_s))
            self._coefficients = None
            self.step_s += (STEP_SHARE if self.step_s else 1.0) * (times.forward_s - self.step_s)
            self._num_steps += 1
            if self._num_steps >= self._next_fit:
                self._next_fit += min(self._num_steps, MOST_BETWEEN_FITS)
                self._current()

    def pass_s(self, plan: StepPlan) -> float:
        """Seconds that the forward pass of a plan may be expected to take; 0: nothing is known.

        By the last fit: this is asked in every step, for which fitting takes too long.
        """
        if not plan.num_rows:
            return 0.0
        expected = _features([_Pass(plan.num_new, plan.num_context, 0.0)])[0, :4]
        return float(expected @ self._fitted)

    def recompute_s(self, tokens: Int64Array, cached: Int64Array) -> FloatArray:
        """Seconds to compute `tokens` again after `cached` ones; float64 [n], finite, 0 or more."""
        coefficients = self._current()
        count = tokens.astype(np.float64)
        work = count * (cached + count / 2)
        seconds: FloatArray = coefficients[_TOKENS] * count + coefficients[_WORK] * work
        return seconds

    def swap_s(self, blocks: Int64Array) -> FloatArray:
        """Seconds to copy so many blocks out and in; float64 [n], +inf while no copy was seen.

        As long as only one direction was seen, the other is taken to be like it.
        """
        both = (self._out_s or self._in_s) + (self._in_s or self._out_s)
        if not both:
            return np.full(len(blocks), np.inf)
        seconds: FloatArray = both * blocks.astype(np.float64)
        return seconds

    def _current(self) -> FloatArray:
        """The coefficients that fit what was seen up to now."""
        if self._coefficients is None:
            sums = self._decodes.up_to_now() + self._prefills.up_to_now()
            self._coefficients = _fit(sums, self._guess)
            self._fitted = self._coefficients
            fixed_s, token_s, context_s, _ = self._coefficients.tolist()
            self.fixed_s, self.token_s, self.context_s = fixed_s, token_s, context_s
        return self._coefficients


class _Pass(NamedTuple):
    """What a forward pass computed, and how long it took."""

    num_new: Int32Array  # [rows]
    num_context: Int32Array  # [rows]
    forward_s: float


class _Sums:
    """Products of features and forward_s, summed over steps of one kind, the newest heaviest."""

    def __init__(self) -> None:
        self._sums = np.zeros((5, 5))
        self._new: list[_Pass] = []

    def add(self, seen: _Pass) -> None:
        """One more step."""
        self._new.append(seen)
        if len(self._new) == AT_ONCE:
            self.up_to_now()

    def up_to_now(self) -> FloatArray:
        """float64 [5, 5]; changed by the next call."""
        if self._new:
            seen = _features(self._new)
            weights = STEP_DECAY ** np.arange(len(seen) - 1, -1, -1) / seen[:, 4]
            self._sums *= STEP_DECAY ** len(seen)
            self._sums += (seen.T * weights) @ seen
            self._new.clear()
        return self._sums


def _mean(old_s: float, blocks: int, seconds: float) -> float:
    """The mean time of a block after one more copy; 0 is unknown."""
    if not (blocks and 0 < seconds < np.inf):
        return old_s
    new_s = seconds / blocks
    return old_s + COPY_SHARE * (new_s - old_s) if old_s else new_s


def _features(passes: Sequence[_Pass]) -> FloatArray:
    """One, tokens, contexts, work, and last the time, of each pass; float64 [passes, 5]."""
    new = np.concatenate([each.num_new for each in passes])
    context = np.concatenate([each.num_context for each in passes])
    num, ends = len(passes), np.cumsum([len(each.num_new) for each in passes])
    starts = np.concatenate(((0,), ends[:-1]))
    prefills = where(new != 1)  # few, beside rows that decode
    owners = ends.searchsorted(prefills, side="right")
    count, cached = new[prefills], context[prefills]
    features = np.ones((5, num))
    np.add.reduceat(new, starts, dtype=np.float64, out=features[1])
    np.add.reduceat(context, starts, dtype=np.float64, out=features[2])
    features[2] -= np.bincount(owners, cached, num)
    features[3] = np.bincount(owners, count * (cached + count / 2), num)
    features[4] = [each.forward_s for each in passes]
    return features.T


def _fit(sums: FloatArray, guess: FloatArray) -> FloatArray:
    """The coefficients, none negative, that explain the sums best; `guess` for unseen features.

    Minimises `x.G.x - 2 g.x + sum(PULLS * (x - guess)**2)` over x >= 0, with every feature scaled
    to a weight of 1. Four coefficients allow the exact way: solve for each set of them with the
    others at 0, and take the best solution without a negative one.
    """
    seen = np.flatnonzero(np.diag(sums)[:4] > 0)
    scale = np.sqrt(np.diag(sums)[seen])
    pulls = PULLS[seen]
    gram = sums[np.ix_(seen, seen)] / np.outer(scale, scale) + np.diag(pulls)
    target = sums[seen, 4] / scale + pulls * guess[seen] * scale
    coefficients = guess.copy()
    coefficients[seen] = non_negative_least_squares(gram, target) / scale
    return coefficients


def non_negative_least_squares(gram: FloatArray, target: FloatArray) -> FloatArray:
    """The x >= 0 with the least `x.gram.x - 2 target.x`; `gram` is positive definite."""
    best, least = np.zeros(len(target)), 0.0
    for size in range(len(target), 0, -1):
        for chosen in combinations(range(len(target)), size):
            free = list(chosen)
            x = np.linalg.solve(gram[np.ix_(free, free)], target[free])
            loss = -float(target[free] @ x)
            if loss < least and (x >= 0).all():
                best, least = np.zeros(len(target)), loss
                best[free] = x
        if size == len(target) and best.any():
            break  # nobody had to be held at 0: no other set can be better
    return best
