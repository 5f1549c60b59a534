"""Checks of single request fields. Each returns the value or raises InvalidRequest naming it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cadenza.service.errors import InvalidRequest


def integer(value: Any, field: str, low: int, high: int) -> int:
    """An int in [low, high]. A bool is no int here, and 5.0 is none either."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{field} must be an integer.", field)
    if not low <= value <= high:
        raise InvalidRequest(f"{field} must be between {low} and {high}.", field)
    return value


def number(value: Any, field: str, low: float, high: float, *, above: bool = False) -> float:
    """A finite float in [low, high], or in (low, high] if `above`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{field} must be a number.", field)
    # comparing before converting: an int beyond the floats cannot be converted
    in_range = low < value <= high if above else low <= value <= high
    if not in_range or not math.isfinite(value):
        bounds = f"above {low:g} and at most {high:g}" if above else f"between {low:g} and {high:g}"
        raise InvalidRequest(f"{field} must be {bounds}.", field)
    return float(value)


def flag(value: Any, field: str) -> bool:
    """A bool, and nothing that merely looks true."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{field} must be true or false.", field)
    return value


def string(value: Any, field: str, *, max_chars: int | None = None, empty: bool = True) -> str:
    """A str that UTF-8 can encode, of at most `max_chars` characters."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} must be a string.", field)
    if not value and not empty:
        raise InvalidRequest(f"{field} must not be empty.", field)
    if max_chars is not None and len(value) > max_chars:
        raise InvalidRequest(f"{field} must have at most {max_chars} characters.", field)
    if not value.isascii():
        _refuse_surrogates(value, field)
    return value


def _refuse_surrogates(value: str, field: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{field} holds a lone surrogate, which is no text.", field) from error


def items(value: Any, field: str, max_items: int) -> Sequence[Any]:
    """A list or tuple of at most `max_items` elements."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidRequest(f"{field} must be a list.", field)
    if len(value) > max_items:
        raise InvalidRequest(f"{field} must have at most {max_items} elements.", field)
    return value
