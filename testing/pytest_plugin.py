"""Fixtures for tests of policies, in every pytest session once Cadenza is installed.

Nothing of Cadenza, nor NumPy, is imported before a test asks for one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cadenza.policies import RequestColumns
    from cadenza.testing import Driver, ManualClock


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock at 0 s that goes only where it is told to. `scheduler_driver` goes by it too."""
    from cadenza.testing import ManualClock

    return ManualClock()


@pytest.fixture
def policy_table() -> Callable[..., RequestColumns]:
    """Makes requests from plain columns: `policy_table(prompt_tokens=[10, 20], tenant=1)`."""
    from cadenza.testing import request_columns

    return request_columns


@pytest.fixture
def scheduler_driver(manual_clock: ManualClock) -> Callable[..., Driver]:
    """Makes schedulers without a model, for policies by hook or for a profile.

        driver = scheduler_driver({"order_admissions": MyPolicy}, max_num_seqs=1)

    A policy is a class, or a name of a built-in one; `options` are by the policy's name, other
    keywords are limits of the scheduler.
    """
    from cadenza.testing import Driver
    from cadenza.testing.profiles import profile_of

    def drive(chosen: Any = None, *, options: Any = None, **limits: Any) -> Driver:
        return Driver(profile_of(chosen, options), clock=manual_clock, **limits)

    return drive
