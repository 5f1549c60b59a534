"""The request table: columns, seats, and the tail buffer."""

import numpy as np
import pytest

from cadenza.scheduler.request import Arrival
from cadenza.scheduler.states import State
from cadenza.scheduler.table import RequestTable


def table_with(prompt: list[int], *, max_tokens: int = 20) -> tuple[RequestTable, int]:
    table = RequestTable(num_seats=2, max_model_len=32, block_size=4)
    row = table.add(
        Arrival(request=7, prompt=np.array(prompt, dtype=np.int32), max_tokens=max_tokens), 1.5
    )
    return table, row


def seat(table: RequestTable, row: int) -> None:
    num = -(-int(table.num_tokens[row]) // 4)
    table.seat_row(row, np.arange(num, dtype=np.int32), 0)


def known_tokens(table: RequestTable, row: int) -> list[int]:
    return table.cold(row).tokens[: table.num_tokens[row]].tolist()


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8])
def test_tokens_survive_any_number_of_seatings(length: int):
    """Appended one by one, over block edges, and across preemptions in mid-block."""
    prompt = list(range(100, 100 + length))
    table, row = table_with(prompt)
    generated: list[int] = []
    for burst in (1, 2, 5, 4):
        seat(table, row)
        for _ in range(burst):
            token = len(generated)
            table.append_tokens(np.array([row]), np.array([token], dtype=np.int32))
            generated.append(token)
        table.unseat_row(row, State.PREEMPTED)

        assert known_tokens(table, row) == prompt + generated
    assert table.preemptions[row] == 4
    assert table.generated_tokens[row] == len(generated)


def test_a_row_is_found_by_its_request_until_it_is_removed():
    table, row = table_with([1, 2])
    assert table.row_of(7) == row
    assert 7 in table

    table.remove(row)

    assert table.row_of(7) is None
    assert len(table) == 0


def test_a_seat_is_used_by_one_row_and_given_back():
    table, row = table_with([1, 2])
    seat(table, row)
    assert table.free_seats == 1
    assert table.running().tolist() == [row]

    table.unseat_row(row, State.PREEMPTED)

    assert table.free_seats == 2
    assert table.waiting().tolist() == [row]
    assert not len(table.blocks(row))


def test_growing_keeps_rows_and_order():
    table = RequestTable(num_seats=1, max_model_len=8, block_size=4)
    for request in range(1000):
        table.add(Arrival(request=request, prompt=np.array([request]), max_tokens=1), 0.0)

    assert table.request[table.waiting()].tolist() == list(range(1000))
    row = table.row_of(999)
    assert row is not None
    assert known_tokens(table, row) == [999]


def test_an_illegal_move_is_refused():
    table, row = table_with([1])

    with pytest.raises(AssertionError, match="cannot go from WAITING to PREEMPTED"):
        table.unseat_row(row, State.PREEMPTED)

    assert State(int(table.state[row])) is State.WAITING
