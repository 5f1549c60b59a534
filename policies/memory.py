"""What was known of each request when a policy was last asked. For policies to share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cadenza.policies.views import IntArray

Indices = npt.NDArray[np.intp]

_SPARSE = 8  # times as many numbers as requests, up to which a number is a place in an array
_FEW = 4096  # numbers that are never too many for that


class Memory:
    """Values by request number, of the requests of one call; those of the next replace them.

    The numbers of requests that wait lie close together, so that mostly a number says where in an
    array the values are: 10,000 are found in a tenth of the time that a search takes.
    """

    def __init__(self, *unknown: float) -> None:
        """A value for each column, and of its type, that stands for requests that are not known."""
        self._unknown = [np.array([value]) for value in unknown]
        self._columns: list[npt.NDArray[Any]] = self._unknown
        self._first = 0
        self._numbers: IntArray | None = None  # ascending, if they lie far apart

    def find(self, requests: IntArray) -> Indices:
        """Where the values of these requests are, for `values`."""
        if self._numbers is None:
            return requests - self._first
        places = self._numbers.searchsorted(requests)
        known = self._numbers.take(places, mode="clip") == requests
        return np.where(known, places, len(self._numbers))

    def values(self, column: int, places: Indices) -> npt.NDArray[Any]:
        """A column's values, or what stands for those of requests that are not known."""
        # Whatever is beyond either end is unknown, as the elements at the ends are
        return self._columns[column].take(places, mode="clip")

    def keep(self, requests: IntArray, *columns: npt.NDArray[Any]) -> None:
        """Know these requests, no two of which are equal, by one value in each column."""
        self._columns, self._first, self._numbers = self._unknown, 0, None
        if not len(requests):
            return
        least, most = int(requests.min()), int(requests.max())
        pairs = list(zip(self._unknown, columns, strict=True))
        if most - least < max(_FEW, _SPARSE * len(requests)):
            self._first = least - 1
            places = requests - self._first
            self._columns = [unknown.repeat(most - least + 3) for unknown, _ in pairs]
            for table, column in zip(self._columns, columns, strict=True):
                table[places] = column
        else:
            order = requests.argsort()
            self._numbers = requests.take(order)
            self._columns = [np.append(column.take(order), unknown) for unknown, column in pairs]
