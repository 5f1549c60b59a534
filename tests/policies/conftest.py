"""A test that is named after a hook has to be about it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.policies.asked import asked_hooks

PREFIX = "test_hook_"


@pytest.fixture(autouse=True)
def _the_hook_of_its_name_is_asked(request: pytest.FixtureRequest) -> Iterator[None]:
    name = request.function.__name__
    with asked_hooks() as asked:
        yield
    hook = name.removeprefix(PREFIX)
    if name.startswith(PREFIX):
        assert asked.has_own(hook), f"{name} asks no policy of its own for {hook}"
