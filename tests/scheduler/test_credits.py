"""Credits: one number a stream, spent to the token, never promised twice in a step."""

import numpy as np

from cadenza.scheduler.credits import UNLIMITED, Credits


def array(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_who_has_no_limit_shares_one_slot_that_never_ends():
    credits = Credits()
    slot = credits.open(None)
    assert slot == UNLIMITED
    credits.spend(array(slot, slot))
    credits.grant(slot, -5)
    credits.hold(slot)
    credits.release(slot)

    assert credits.num_limited == 0
    assert credits.left[UNLIMITED] == np.iinfo(np.int64).max
    assert credits.reserve(array(slot, slot), array(8, 8)).tolist() == [True, True]
    assert credits.has_spare(slot, 2**40)


def test_each_row_of_a_stream_spends_a_token():
    credits = Credits()
    first, second = credits.open(5), credits.open(3)

    credits.spend(array(first, second, UNLIMITED, first, first))

    assert credits.left[[first, second]].tolist() == [2, 2]


def test_a_grant_adds_and_a_negative_one_takes():
    credits = Credits()
    slot = credits.open(0)
    credits.grant(slot, 7)
    credits.grant(slot, -3)

    assert credits.left[slot] == 4


def test_a_row_is_covered_with_a_token_for_each_of_its_choices():
    credits = Credits()
    slot = credits.open(2)

    covered = credits.cover(array(slot, slot, slot, UNLIMITED), array(1, 2, 3, 9))

    assert covered.tolist() == [True, True, False, True]


def test_a_reservation_counts_against_the_next_and_the_first_come_first():
    credits = Credits()
    slot, other = credits.open(3), credits.open(1)
    credits.begin()

    granted = credits.reserve(array(slot, other, slot, slot), array(2, 1, 2, 1))

    assert granted.tolist() == [True, True, False, True]
    assert not credits.has_spare(slot, 1)
    assert credits.left[slot] == 3, "reserved is not spent"


def test_reservations_last_for_one_step():
    credits = Credits()
    slot = credits.open(2)
    credits.reserve(array(slot), array(2))
    assert not credits.has_spare(slot, 1)

    credits.begin()

    assert credits.has_spare(slot, 2)
    assert not credits.has_spare(slot, 3)


def test_a_slot_is_closed_by_its_last_row_and_used_again():
    credits = Credits()
    slot = credits.open(9)
    credits.hold(slot)
    credits.release(slot)
    assert credits.num_limited == 1
    assert credits.left[slot] == 9

    credits.release(slot)

    assert credits.num_limited == 0
    assert credits.open(4) == slot
    assert credits.left[slot] == 4


def test_any_number_of_streams_keeps_its_own():
    credits = Credits()
    slots = [credits.open(tokens) for tokens in range(100)]
    credits.begin()

    assert len(set(slots)) == 100
    assert UNLIMITED not in slots
    assert credits.left[slots].tolist() == list(range(100))
    assert credits.num_limited == 100
    assert credits.reserve(array(*slots), array(*[50] * 100)).sum() == 50


def test_rows_that_come_apart_share_one_credit_under_all_their_names():
    credits = Credits()
    slot = credits.open(3, [6])
    assert credits.share(6, [7]) == credits.slot_of(7) == slot
    credits.spend(array(slot, slot))
    credits.release(slot)
    credits.grant(credits.slot_of(6), 4)

    assert credits.left[slot] == 5
    credits.release(slot)
    assert credits.slot_of(7) == UNLIMITED
    assert credits.num_limited == 0


def test_who_shares_with_one_without_limit_has_none():
    credits = Credits()
    credits.open(None, [6])

    assert credits.share(6, [7]) == UNLIMITED
    assert credits.num_limited == 0
