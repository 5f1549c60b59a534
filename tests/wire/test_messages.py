"""What the module of the messages says of itself."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from cadenza.wire import messages


@pytest.mark.parametrize(
    ("direction", "union"),
    [("Front to engine", messages.ToEngine), ("Engine to front", messages.ToFront)],
)
def test_the_docstring_names_every_message_of_its_direction(direction: str, union: Any) -> None:
    told = re.search(rf"{direction}: ([^.]*)\.", messages.__doc__ or "")
    assert told is not None

    assert re.findall(r"`(\w+)`", told[1]) == [kind.__name__ for kind in get_args(union)]
