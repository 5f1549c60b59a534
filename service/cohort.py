"""Rows that get a token each, step after step, and nothing else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, NamedTuple

from cadenza.service.news import News
from cadenza.service.request_timer import JointTimes
from cadenza.service.submissions import Branch
from cadenza.service.tap import TakeAll, Tap, Way

if TYPE_CHECKING:
    from cadenza.service.engine_rows import Row

_plain_tap = attrgetter("plain_tap")
_MOST_STEPS = 32  # before rows are told, which takes 0.2 ms for 64 rows with cold caches


class _Member(NamedTuple):
    place: int  # in the step's columns
    branch: Branch
    tap: Tap


class _Group(NamedTuple):
    """Members whose taps lead the same way."""

    members: Sequence[_Member]
    tokens_of: Callable[[Sequence[int]], Sequence[int]]  # of a step's tokens
    take_all: TakeAll


class Cohort:
    """The rows of a step, and of the steps after it while these bring the same rows nothing else.

    Tokens go to taps at once. To write them down for each row as well would touch some places in
    memory for each, few of which are in the caches when a step comes: that took half of what a
    Session's step cost. They are kept by the step, and come to the rows by `settle`, before
    anything else may happen to these.
    """

    def __init__(self, news: News, branches: Mapping[int, Branch]) -> None:
        """`branches`: all rows, by number."""
        self._requests = news.requests
        self._members: list[_Member] = []
        self._others: list[tuple[Branch, int]] = []  # rows by themselves, with their places
        self._rows: list[Row] = []  # all of them
        self._taps: list[Tap | None] = []  # that they had
        columns = zip(news.requests, news.tokens, news.finished, strict=True)
        for place, (request, token, finished) in enumerate(columns):
            branch = branches.get(request)
            if branch is None:
                continue
            tap = branch.row.plain_tap
            self._rows.append(branch.row)
            self._taps.append(tap)
            if tap is None or token < 0 or finished or request in news.logprobs:
                self._others.append((branch, place))
            else:
                self._members.append(_Member(place, branch, tap))
        self._alone, self._together = _by_way(self._members)
        self._times: JointTimes | None = None  # from the first step on, if that had members
        self._steps: list[Sequence[int]] = []  # tokens of all rows, not yet told to members
        self._is_over = False

    def fits(self, news: News) -> bool:
        """Whether a step can be handed out likewise."""
        return (
            not self._is_over
            and self._requests == news.requests
            and not any(news.finished)
            and self._taps == [*map(_plain_tap, self._rows)]
            and (not news.logprobs or self._are_without(news.logprobs))
        )

    def hand_out(self, news: News, now_s: float) -> Sequence[tuple[Branch, int]]:
        """Give a step's tokens to the taps. Returns the other rows, with their places in it.

        What a tap raises is told to its row; what a way raises, to all rows that share it.
        """
        left = self._places_left(news.tokens)
        if self._times is not None and not left:
            self._steps.append(news.tokens)
            self._times.token(now_s)
            if len(self._steps) >= _MOST_STEPS:
                self.settle()
            return self._others
        self.settle()
        taken = [member for member in self._members if member.place not in left]
        for member in taken:
            _tell(member, (news.tokens[member.place],))
            member.branch.row.times.token(now_s)
        if left:
            self._is_over = True
            leaving = [(each.branch, each.place) for each in self._members if each.place in left]
            return [*self._others, *leaving]
        if taken:
            self._times = JointTimes([each.branch.row.times for each in taken], now_s)
        return self._others

    def settle(self) -> None:
        """Let the rows have all that their taps have taken."""
        if not self._steps:
            return
        steps, self._steps = self._steps, []
        columns = list(zip(*steps, strict=True))
        for member in self._members:
            _tell(member, columns[member.place])
        assert self._times is not None
        self._times.settle()

    def _are_without(self, logprobs: Mapping[int, object]) -> bool:
        return logprobs.keys().isdisjoint([each.branch.number for each in self._members])

    def _places_left(self, tokens: Sequence[int]) -> Collection[int]:
        left = [each.place for each in self._alone if not _is_taken(each, tokens)]
        for group in self._together:
            try:
                are_taken = group.take_all(group.tokens_of(tokens))
            except Exception as error:
                for member in group.members:
                    member.branch.row.tap_failed(error)
                left += [member.place for member in group.members]
                continue
            if not are_taken:
                left += [each.place for each in group.members if not _is_taken(each, tokens)]
        return frozenset(left)


def _by_way(members: Sequence[_Member]) -> tuple[list[_Member], list[_Group]]:
    """Those alone on their way, and those that share one."""
    ways: dict[Way, list[_Member]] = defaultdict(list)
    alone: list[_Member] = []
    for member in members:
        if member.tap.way is None:
            alone.append(member)
        else:
            ways[member.tap.way].append(member)
    groups: list[_Group] = []
    for way, sharing in ways.items():
        if len(sharing) == 1:
            alone += sharing
        else:
            take_all = way.together([member.tap for member in sharing])
            tokens_of = itemgetter(*[member.place for member in sharing])
            groups.append(_Group(sharing, tokens_of, take_all))
    return alone, groups


def _is_taken(member: _Member, tokens: Sequence[int]) -> bool:
    try:
        return member.tap.take_plain(tokens[member.place])
    except Exception as error:
        member.branch.row.tap_failed(error)
        return False


def _tell(member: _Member, tokens: Sequence[int]) -> None:
    member.branch.emitted.extend(tokens)
    member.tap.told(tokens)
