"""The table's columns: typed, zero for a new row, kept while the table grows."""

import numpy as np

from cadenza.policies.views import RequestColumns
from cadenza.scheduler.columns import Columns


def columns(size: int) -> Columns:
    made = Columns()
    made.grow(size)
    return made


def test_every_annotated_column_is_there_and_zero():
    made = columns(3)

    assert set(made.by_name) == set(Columns.__annotations__)
    for name, column in made.by_name.items():
        assert getattr(made, name) is column
        assert column.shape == (3,)
        assert not column.any(), name


def test_every_column_that_a_policy_sees_is_one_of_the_table():
    seen = {name for name, each in vars(RequestColumns).items() if isinstance(each, property)}
    derived = {"remaining_prefill", "blocks_alone"}

    assert seen - derived <= set(Columns.__annotations__)


def test_columns_have_the_types_of_their_annotations():
    made = columns(1)

    assert made.state.dtype == np.int8
    assert made.waits.dtype == np.bool_
    assert made.num_tokens.dtype == np.int64
    assert made.deadline_s.dtype == np.float64


def test_growing_keeps_what_is_there_and_replaces_the_arrays():
    made = columns(2)
    made.num_tokens[:] = [5, 7]
    made.parked[1] = True

    made.grow(4)

    assert made.size == 4
    assert made.num_tokens.tolist() == [5, 7, 0, 0]
    assert made.parked.tolist() == [False, True, False, False]
    assert made.by_name["num_tokens"] is made.num_tokens


def test_clearing_and_copying_touch_one_row_in_every_column():
    made = columns(3)
    for column in made.by_name.values():
        column[0] = 1

    made.copy(0, 2)
    assert all(column.tolist() == [1, 0, 1] for column in made.by_name.values())

    made.clear(0)
    assert all(column.tolist() == [0, 0, 1] for column in made.by_name.values())
