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
    blocks = np.arange(-(-int(table.num_tokens[row]) // 4), dtype=np.int32)
    table.take_seats(table.cold(row))
    table.seat_rows(np.array([row]), [blocks], np.array([0]))


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

    table.remove(np.array([row]))

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


def test_rows_that_sit_down_together_get_each_its_own():
    """In the order in which they took their seats, whatever that of the rows is."""
    table = RequestTable(num_seats=4, max_model_len=32, block_size=4)
    prompts = {1: [11, 12, 13, 14, 15], 2: [21], 3: [31, 32]}
    for request, prompt in prompts.items():
        ids = np.array(prompt, dtype=np.int32)
        table.add(Arrival(request=request, prompt=ids, max_tokens=4), 0.0)
    first, second, third = table.waiting().tolist()
    for row in (third, first):
        table.take_seats(table.cold(row))
    assert table.free_seats == 2
    assert not len(table.seated()), "a seat that is taken is not sat on yet"

    blocks = [np.array(each, dtype=np.int32) for each in ([9], [3, 5])]
    table.seat_rows(np.array([third, first]), blocks, np.array([1, 4]))

    assert sorted(table.running().tolist()) == [first, third]
    assert table.waiting().tolist() == [second]
    assert [table.blocks(row).tolist() for row in (first, third)] == [[3, 5], [9]]
    assert [table.ids(row).tolist() for row in (first, third)] == [prompts[1], prompts[3]]
    assert table.computed_tokens[[first, third]].tolist() == [4, 1]
    assert table.admission[[third, first, second]].tolist() == [0, 1, -1]


def test_a_row_that_sits_down_again_keeps_its_first_admission():
    table, row = table_with([1, 2])
    seat(table, row)
    table.unseat_row(row, State.PREEMPTED)
    later = table.add(Arrival(request=8, prompt=np.array([1], dtype=np.int32), max_tokens=1), 0.0)

    seat(table, later)
    seat(table, row)

    assert table.admission[[row, later]].tolist() == [0, 1]


def test_rows_in_any_state_are_removed_together_and_give_back_every_seat():
    table = RequestTable(num_seats=4, max_model_len=32, block_size=4)
    prompt = np.array([1, 2], dtype=np.int32)
    rows = [
        table.add(Arrival(request=request, prompt=prompt, max_tokens=4, n=n), 0.0)
        for request, n in ((1, 2), (5, 1), (6, 1), (7, 1))
    ]
    for row in rows[:3]:
        seat(table, row)
    table.move(rows[1], State.PARKED)
    table.unseat_row(rows[2], State.SWAPPED)

    table.remove(np.array(rows))

    assert len(table) == len(list(table)) == 0
    assert (table.free_seats, table.num_parked, table.num_swapped) == (4, 0, 0)
    assert not len(table.seated())
    assert not len(table.waiting())
    assert [table.row_of(request) for request in (1, 2, 5, 6, 7)] == [None] * 5


def test_the_history_is_one_buffer_by_token_and_by_block():
    table, row = table_with([1, 2, 3])
    seat(table, row)

    table.append_tokens(np.array([row]), np.array([4], dtype=np.int32))

    assert table.history_blocks[table.seat[row], 0].tolist() == [1, 2, 3, 4]


def group_of(n: int, *, seats: int = 4) -> tuple[RequestTable, int]:
    """A row of `n` choices, called 7, 8, ..., of a prompt of six tokens."""
    table = RequestTable(num_seats=seats, max_model_len=32, block_size=4)
    prompt = np.arange(100, 106, dtype=np.int32)
    row = table.add(Arrival(request=7, prompt=prompt, max_tokens=20, n=n, priority=3), 0.0)
    return table, row


def test_a_row_of_several_choices_is_found_by_each_and_counts_for_each():
    table, row = group_of(3)

    assert [table.row_of(request) for request in (7, 8, 9)] == [row] * 3
    assert table.row_of(10) is None
    assert len(table) == 3
    seat(table, row)
    assert table.free_seats == 1
    assert table.running().tolist() == [row]


def test_a_fork_gives_every_choice_a_row_that_goes_its_own_way():
    table, row = group_of(3)
    later = table.add(Arrival(request=20, prompt=np.array([1], dtype=np.int32), max_tokens=1), 0.0)
    seat(table, row)

    rows = table.fork(row)

    assert rows[0] == row
    assert table.request[rows].tolist() == [7, 8, 9]
    assert [table.row_of(request) for request in (7, 8, 9)] == rows.tolist()
    assert table.choices[rows].tolist() == [1, 1, 1]
    assert table.arrival[rows].tolist() == [0, 1, 2]
    assert table.admission[rows].tolist() == [0, 1, 2]
    assert table.arrival[later] == 3, "ranks of the choices were kept free"
    assert table.priority[rows].tolist() == [3, 3, 3]
    assert table.shares_tail[rows].all()
    assert [table.blocks(each).tolist() for each in rows] == [[0, 1]] * 3
    assert len(set(table.seat[rows].tolist())) == 3

    table.append_tokens(rows, np.array([1, 2, 3], dtype=np.int32))
    table.append_blocks(rows[1:2], np.array([5], dtype=np.int32))
    table.replace_tail(int(rows[2]), 6)
    prompt = list(range(100, 106))
    assert [table.ids(each).tolist() for each in rows] == [[*prompt, token] for token in (1, 2, 3)]
    assert [table.blocks(each).tolist() for each in rows] == [[0, 1], [0, 1, 5], [0, 6]]
    table.unseat_row(int(rows[1]), State.SWAPPED)
    assert known_tokens(table, int(rows[1])) == [*prompt, 2]
    assert table.ids(int(rows[0])).tolist() == [*prompt, 1]


@pytest.mark.parametrize("seated", [False, True])
@pytest.mark.parametrize("gone", [7, 8, 9])
def test_a_choice_that_is_dropped_takes_its_seat_along_and_nothing_else(gone: int, seated: bool):
    table, row = group_of(3)
    if seated:
        seat(table, row)

    table.drop_choice(row, gone)

    stays = [request for request in (7, 8, 9) if request != gone]
    assert table.row_of(gone) is None
    assert [table.row_of(request) for request in stays] == [row, row]
    assert table.request[row] == stays[0]
    assert table.choices[row] == 2
    assert table.free_seats == (2 if seated else 4)
    assert table.ids(row).tolist() == list(range(100, 106))
    if seated:
        assert table.blocks(row).tolist() == [0, 1]
        assert table.seated().tolist() == [row]
        assert table.cold(row).seats[0] == table.seat[row]
    table.remove(np.array([row]))
    assert len(table) == 0
    assert table.free_seats == 4


def test_parked_and_swapped_rows_are_counted_as_they_come_and_go():
    table, row = table_with([1, 2])
    seat(table, row)
    table.move(row, State.PARKED)
    assert (table.num_parked, table.num_swapped) == (1, 0)
    assert table.running().tolist() == []
    assert table.seated().tolist() == [row]

    table.unseat_row(row, State.SWAPPED)
    assert (table.num_parked, table.num_swapped) == (0, 1)
    assert table.waiting().tolist() == [row]

    table.move(row, State.PREEMPTED)
    assert (table.num_parked, table.num_swapped) == (0, 0)
    assert table.waiting().tolist() == [row]


def test_the_earliest_deadline_is_of_rows_that_are_here():
    table = RequestTable(num_seats=1, max_model_len=8, block_size=4)
    assert table.earliest_deadline_s() == float("inf")
    prompt = np.array([1], dtype=np.int32)
    first = table.add(Arrival(request=1, prompt=prompt, max_tokens=1, deadline_s=2.5), 0.0)
    table.add(Arrival(request=2, prompt=prompt, max_tokens=1, deadline_s=7.5), 0.0)
    assert table.earliest_deadline_s() == 2.5

    table.remove(np.array([first]))

    assert table.earliest_deadline_s() == 7.5
