"""Small numbers for tenants' names, so that a policy can count by tenant in an array."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType

NO_TENANT = 0
MAX_IDLE = 1024  # tenants remembered without a row; a returning one is charged on


class Tenants:
    """Numbers from 1 up, as few as there are tenants to tell apart.

    A tenant keeps its number while it has a row, and afterwards until MAX_IDLE others have become
    idle; then the number is another tenant's.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: list[str] = [""]  # by number
        self._rows: list[int] = [0]  # by number
        self._idle: OrderedDict[int, None] = OrderedDict()  # numbers without a row, longest first
        self.numbers: Mapping[str, int] = MappingProxyType(self._numbers)  # by name, as they change

    def enter(self, name: str) -> int:
        """The number of the tenant of one more row; NO_TENANT if it has no name."""
        if not name:
            return NO_TENANT
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._new_number()
            self._names[number] = name
        self.hold(number)
        return number

    def hold(self, number: int) -> None:
        """One more row of a tenant that has one, or had."""
        if number != NO_TENANT:
            self._rows[number] += 1
            self._idle.pop(number, None)

    def leave(self, number: int) -> None:
        """One row less."""
        if number == NO_TENANT:
            return
        self._rows[number] -= 1
        if not self._rows[number]:
            self._idle[number] = None

    def _new_number(self) -> int:
        if len(self._idle) >= MAX_IDLE:
            number, _ = self._idle.popitem(last=False)
            del self._numbers[self._names[number]]
            return number
        self._names.append("")
        self._rows.append(0)
        return len(self._names) - 1
