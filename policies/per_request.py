"""Scores by a plain function of one request, for authors to whom arrays are foreign.

class ShortPromptsFirst:
    name = "short-prompts-first"

    @hookimpl
    @per_request
    def order_admissions(self, request, step) -> float:
        return request.prompt_tokens + request.priority * 1000
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from cadenza.policies.errors import unknown
from cadenza.policies.memory import Memory
from cadenza.policies.views import FloatArray, IntArray, RequestColumns, StepView

MOST_NEW = 1024  # requests that are scored for the first time in one call
MOST_AGAIN = 512  # that are scored again

_UNKNOWN = -1  # in place of the turn in which a request was scored last

_Indices = npt.NDArray[np.intp]
_Function = Callable[..., float]
_Hook = Callable[[Any, RequestColumns, StepView], FloatArray]


def per_request(function: _Function) -> _Hook:
    """Make a hook that scores requests out of a method that scores one: `order_admissions` or
    `select_victims`.

    The method takes `self`, `request` and, if it likes, `step`. `request` has the columns of
    `RequestColumns` as attributes, each a plain number or bool, and is not to be kept. Scores are
    remembered for each request. In a call new requests are scored, the earliest MOST_NEW of them,
    and of the others the MOST_AGAIN whose scores are oldest; those that are not there any more are
    forgotten. So a score may be some calls old, one for every MOST_AGAIN requests, and of a crowd
    that comes at once the later ones are kept out for some steps (+inf) until they are scored: the
    method should depend on time and state slowly, if at all.

    Raises:
        TypeError: the method has another name, or other arguments.
    """
    name = getattr(function, "__name__", str(function))
    if name not in _HOOKS:
        raise TypeError(f"per_request is for {' and '.join(_HOOKS)}, not for {name}")
    arguments = list(inspect.signature(function).parameters)
    if arguments not in (["self", "request", "step"], ["self", "request"]):
        raise TypeError(
            f"{name} takes ({', '.join(arguments)}); with per_request it takes "
            "(self, request, step) or (self, request)"
        )
    hook = _HOOKS[name](function, len(arguments) == 3)
    update_wrapper(hook, function)
    del hook.__wrapped__  # type: ignore[attr-defined]  # or it would show the function's arguments
    return hook


def _order_admissions(function: _Function, takes_step: bool) -> _Hook:
    def order_admissions(self: Any, waiting: RequestColumns, step: StepView) -> FloatArray:
        return _scores_of(self, function).update(self, waiting, (step,) if takes_step else ())

    return order_admissions


def _select_victims(function: _Function, takes_step: bool) -> _Hook:
    def select_victims(self: Any, running: RequestColumns, step: StepView) -> FloatArray:
        return _scores_of(self, function).update(self, running, (step,) if takes_step else ())

    return select_victims


_HOOKS: dict[str, Callable[[_Function, bool], _Hook]] = {
    "order_admissions": _order_admissions,
    "select_victims": _select_victims,
}


def _scores_of(policy: Any, function: _Function) -> _Scores:
    """Kept in the instance, so that a fresh one begins anew."""
    attribute = f"_per_request_{function.__name__}"
    scores = getattr(policy, attribute, None)
    if scores is None:
        scores = _Scores(function)
        object.__setattr__(policy, attribute, scores)  # a frozen dataclass has it too
    return scores


class _Scores:
    """What one function says of each request that was there in the last call."""

    def __init__(self, function: _Function) -> None:
        self._function = function
        self._memory = Memory(np.inf, _UNKNOWN)  # scores, and the turns in which they were found
        self._turn = 0
        self._request = _request_type(())

    def update(self, policy: Any, view: RequestColumns, step: tuple[StepView, ...]) -> FloatArray:
        """float64 [requests], after some of them were scored."""
        requests = view.request
        places = self._memory.find(requests)
        scores, turns = (self._memory.values(column, places) for column in (0, 1))
        due = _due(turns, view)
        self._turn += 1
        scores[due] = self._evaluate(policy, view, due, step)
        turns[due] = self._turn
        self._memory.keep(requests, scores, turns)
        return scores

    def _evaluate(
        self, policy: Any, view: RequestColumns, due: _Indices, step: tuple[StepView, ...]
    ) -> npt.NDArray[Any]:
        batch, function = _Batch(view, due), self._function
        columns = [batch.column(name) for name in self._request.names]
        parts = zip(repeat(batch, len(due)), range(len(due)), *columns, strict=True)
        if step:
            (view_of_step,) = step
            said = [function(policy, each, view_of_step) for each in map(self._request, parts)]
        else:
            said = [function(policy, each) for each in map(self._request, parts)]
        if len(batch.columns) > len(columns):  # it has looked at something else this time
            self._request = _request_type(tuple(batch.columns))
        scores = np.array(said)
        if len(said) and (scores.ndim != 1 or scores.dtype.kind not in "fiu"):
            raise TypeError(f"{function.__name__} must return a number, not {_strange(said)!r}")
        return scores


class _Batch:
    """The requests that are scored in one call, and what is read of them."""

    __slots__ = ("_due", "_view", "columns")

    def __init__(self, view: RequestColumns, due: _Indices) -> None:
        self._view, self._due = view, due
        self.columns: dict[str, list[Any]] = {}

    def column(self, name: str) -> list[Any]:
        """Its values, as plain Python numbers, read when they are first wanted."""
        if name not in self.columns:
            if name not in _COLUMNS:
                raise AttributeError(unknown("column", name, sorted(_COLUMNS)))
            self.columns[name] = getattr(self._view, name)[self._due].tolist()
        return self.columns[name]


class _Request(tuple[Any, ...]):
    """One request: its batch, its place there, and the values of columns that are known to be read.

    A tuple, since nothing is built faster.
    """

    __slots__ = ()
    names: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return self[0].column(name)[self[1]]

    def __repr__(self) -> str:
        return f"<request {self.request}>"


def _request_type(names: tuple[str, ...]) -> type[_Request]:
    attributes = {name: property(itemgetter(place)) for place, name in enumerate(names, start=2)}
    return type("Request", (_Request,), {"__slots__": (), "names": names, **attributes})


_COLUMNS = frozenset(
    name for name in dir(RequestColumns) if isinstance(getattr(RequestColumns, name), property)
)


def _due(turns: IntArray, view: RequestColumns) -> _Indices:
    """Who is scored in this call."""
    new, known = (turns == _UNKNOWN).nonzero()[0], (turns != _UNKNOWN).nonzero()[0]
    if len(new) > MOST_NEW:
        new = new[view.arrival[new].argsort()[:MOST_NEW]]
    if len(known) > MOST_AGAIN:
        known = known[turns[known].argpartition(MOST_AGAIN)[:MOST_AGAIN]]
    return np.concatenate((new, known))


def _strange(said: list[Any]) -> Any:
    """The first answer that is no number."""
    numbers = (int, float, np.number)
    strange = (each for each in said if isinstance(each, bool) or not isinstance(each, numbers))
    return next(strange, said[0])
