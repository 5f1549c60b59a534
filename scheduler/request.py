"""One row's cold state: what is looked at only when the row changes state."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from cadenza.scheduler.prefix import NO_KEYS, BlockKeys

Tokens = npt.NDArray[np.int32]

MAX_STOP_TOKEN_IDS = 16
NO_TOKENS: Tokens = np.empty(0, dtype=np.int32)


class Refused(ValueError):
    """The scheduler cannot take the request as it is. The sentence may be shown to the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request as it enters the scheduler: one prompt, and `n` choices that continue it.

    The choices are called `request` to `request + n - 1`, and live and end each by itself.
    """

    request: int  # unique, like the n - 1 numbers after it, among all that this scheduler has seen
    prompt: Tokens  # at least one id
    emitted: Tokens = field(default_factory=lambda: np.empty(0, dtype=np.int32))  # only if n is 1
    n: int = 1
    max_tokens: int  # output tokens of each choice, emitted ones included
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    priority: int = 0  # lower is earlier
    tenant: str = ""  # whom it counts for; empty: nobody in particular
    cache_salt: str = ""
    credit: int | None = None  # tokens the reader takes, over all choices; None: without limit
    shares_credit_with: int | None = None  # a request that is here, in place of a credit of its own
    deadline_s: float = float("inf")  # on the clock of `Scheduler.step`
    ttft_target_s: float = float("inf")  # from arrival to the first token; policies' business only
    tpot_target_s: float = float("inf")  # between tokens; policies' business only
    predicted_tokens: int = 0  # of each choice's output; 0: nobody predicted
    may_swap: bool = True
    may_recompute: bool = True  # False: only if it can be swapped instead

    @property
    def requests(self) -> range:
        return range(self.request, self.request + self.n)

    def check(self, *, max_model_len: int, max_num_seqs: int) -> None:
        """Make sure that the request can run, alone at least.

        Raises:
            Refused: no prompt, nothing to generate, no room for a token, too many choices or stop
                token ids, a first credit that does not give each choice a token.
        """
        known = len(self.prompt) + len(self.emitted)
        if not len(self.prompt):
            raise Refused("the prompt is empty")
        if known >= max_model_len:
            raise Refused(
                f"{known} tokens leave no room to generate within max_model_len {max_model_len}"
            )
        if len(self.emitted) >= self.max_tokens:
            raise Refused(
                f"{len(self.emitted)} emitted tokens leave none of max_tokens {self.max_tokens}"
            )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise Refused(f"there are more than {MAX_STOP_TOKEN_IDS} stop token ids")
        self._check_choices(max_num_seqs)
        self._check_numbers()

    def _check_choices(self, max_num_seqs: int) -> None:
        if not 1 <= self.n <= max_num_seqs:
            raise Refused(f"n is {self.n}, but 1 to {max_num_seqs} choices can run together")
        if self.n > 1 and len(self.emitted):
            raise Refused("emitted tokens belong to one choice, so n must be 1 beside them")
        if self.credit is not None and self.credit < (0 if self.n == 1 else self.n):
            raise Refused(
                f"a credit of {self.credit} does not give each of {self.n} choices a token"
            )

    def _check_numbers(self) -> None:
        """What the table's columns can hold."""
        for name, number, bits in (
            ("priority", self.priority, 63),
            ("credit", self.credit or 0, 62),
            ("predicted_tokens", self.predicted_tokens, 62),
            *(("stop token id", token, 31) for token in self.stop_token_ids),
        ):
            if not -(1 << bits) <= number < 1 << bits:
                raise Refused(f"{name} {number} is no number of {bits + 1} bits")
        if math.isnan(self.deadline_s):
            raise Refused("the deadline is no time")
        for name, target_s in (("TTFT", self.ttft_target_s), ("TPOT", self.tpot_target_s)):
            if not target_s > 0:
                raise Refused(f"the {name} target is no time above 0")
        if self.predicted_tokens < 0:
            raise Refused("predicted_tokens is negative")


class HostCopy(NamedTuple):
    """What a swapped row has on the host, and what it hopes to find on the device."""

    copied: list[tuple[int, int]]  # (index in the block table, host block)
    shared: list[int]  # indices of full blocks that others held; matched again by key
    computed: int  # tokens


class Request(msgspec.Struct, eq=False, gc=False):
    """The tokens of a row, the keys of its full blocks, and the choices that it stands for.

    Thousands may wait, so there is little in it that the garbage collector has to walk over.
    """

    tokens: Tokens  # all that are known, but none while the row has a seat: `RequestTable.ids`
    salt: str
    choices: tuple[int, ...]  # request numbers; one, except until a prompt with several is complete
    seats: tuple[int, ...] = ()  # one a choice while the row is seated
    keys: BlockKeys = NO_KEYS
    host: HostCopy | None = None
    lost_tokens: int = 0  # computed, and dropped by the last preemption

    def branch(self, rank: int) -> Request:
        """The cold state of one choice of several, at the moment when each goes its own way."""
        return Request(
            tokens=self.tokens,
            salt=self.salt,
            choices=(self.choices[rank],),
            seats=(self.seats[rank],),
            keys=self.keys,
        )
