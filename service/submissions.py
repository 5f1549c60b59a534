"""What was submitted and has not ended, as another engine needs it to go on."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cadenza.wire.messages import Resubmit, Submit

if TYPE_CHECKING:
    from cadenza.service.engine_rows import Row


class Branch:
    """One row that has not ended: who receives its tokens, and those that were handed out."""

    __slots__ = ("emitted", "is_seated", "is_stalled", "number", "row", "submission", "submit")

    def __init__(self, number: int, row: Row, submission: Submission, submit: Submit) -> None:
        self.number = number
        self.row = row
        self.submission = submission
        self.submit = submit  # as if it had come alone, and as its client wants it by now
        self.emitted = array("i")
        self.is_seated = False  # in the engine, by what that said last
        self.is_stalled = False


class Submission:
    """A prompt and its rows that have not ended.

    The tokens that were handed out are kept here, four bytes each, because who receives them keeps
    only what its reader has not taken.
    """

    __slots__ = ("_num_spent", "branches", "credit", "place", "progress_at_death", "strikes")

    def __init__(self, submit: Submit, rows: Sequence[Row]) -> None:
        self.branches: dict[int, Branch] = {}  # by number
        self.credit = submit.credit  # granted so far; None: without limit
        self.place: int | None = None  # among the messages of an engine that has it; None: none has
        self.strikes = 0  # deaths of engines in a row at the same place of this
        self.progress_at_death = 0  # tokens that it had at the last of them
        self._num_spent = 0  # tokens of branches that have ended
        for rank, row in enumerate(rows):
            number = submit.request + rank
            alone = replace(submit, request=number, choice=submit.choice + rank, n=1)
            self.branches[number] = Branch(number, row, self, alone)

    @property
    def number(self) -> int:
        """Some row's, by which the engine knows all of them."""
        return next(iter(self.branches))

    @property
    def num_tokens(self) -> int:
        """Handed out so far, of all rows."""
        return self._num_spent + sum([len(each.emitted) for each in self.branches.values()])

    def remove(self, branch: Branch) -> None:
        """A row has ended."""
        self._num_spent += len(branch.emitted)
        del self.branches[branch.number]

    def grant(self, tokens: int) -> None:
        """The reader takes `tokens` more, of all rows together."""
        if self.credit is not None:
            self.credit = max(self.credit + tokens, self.num_tokens)

    def message(self) -> Submit | Resubmit:
        """What lets an engine that knows nothing of this go on with it."""
        branches, num_tokens = [*self.branches.values()], self.num_tokens
        credit = None if self.credit is None else max(self.credit - num_tokens, 0)
        numbers = range(self.number, self.number + len(branches))
        if not num_tokens and [*self.branches] == [*numbers]:
            # They share the work at the prompt
            return replace(branches[0].submit, n=len(branches), credit=credit)
        return Resubmit(tuple(_resumed(each, credit) for each in branches))


def _resumed(branch: Branch, credit: int | None) -> Submit:
    submit, sampling = branch.submit, branch.submit.sampling
    if branch.emitted and sampling.prompt_logprobs is not None:
        # Its prompt's scores came before its first token
        sampling = replace(sampling, prompt_logprobs=None)
    emitted = branch.emitted.tobytes()
    return replace(submit, emitted=emitted, credit=credit, sampling=sampling)
