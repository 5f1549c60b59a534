"""Values by request number, from one call to the next."""

import numpy as np
import pytest

from cadenza.policies.memory import Memory


def recalled(memory: Memory, *requests: int, columns: int = 1) -> list[list[float]]:
    places = memory.find(np.array(requests, dtype=np.int64))
    return [memory.values(column, places).tolist() for column in range(columns)]


@pytest.mark.parametrize("far", [1, 1 << 40])
def test_it_knows_the_requests_of_the_last_call_in_any_order_and_no_others(far: int):
    memory = Memory(-1, np.inf)
    memory.keep(np.array([9]) * far, np.array([90]), np.array([9.5]))
    memory.keep(np.array([7, 5, 8]) * far, np.array([70, 50, 80]), np.array([7.5, 5.5, 8.5]))

    asked = [each * far for each in (5, 4, 8, 6, 9, 7, 0, 5000)]
    assert recalled(memory, *asked, columns=2) == [
        [50, -1, 80, -1, -1, 70, -1, -1],
        [5.5, np.inf, 8.5, np.inf, np.inf, 7.5, np.inf, np.inf],
    ]


def test_of_nobody_it_knows_nothing():
    memory = Memory(-1)
    assert recalled(memory, 0, 7) == [[-1, -1]]

    memory.keep(np.array([7]), np.array([70]))
    memory.keep(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    assert recalled(memory, 0, 7) == [[-1, -1]]
    assert recalled(memory) == [[]]


def test_what_is_kept_and_what_is_recalled_are_nobody_s_but_its_own():
    memory, values = Memory(-1), np.array([70, 80])
    memory.keep(np.array([7, 8]), values)
    values[:] = 0
    memory.values(0, memory.find(np.array([7, 8])))[:] = 1

    assert recalled(memory, 7, 8) == [[70, 80]]
