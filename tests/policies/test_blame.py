"""The memory that names a hook call to another process."""

import pytest

from cadenza.policies.blame import SIZE, Blame, Culprit, read_blame
from cadenza.policies.builtin import BUILTIN
from cadenza.policies.contract import hooks_of


def test_nobody_is_blamed_in_fresh_memory():
    assert read_blame(bytearray(SIZE)) is None


def test_a_long_name_is_cut():
    memory = bytearray(SIZE)
    blame = Blame(memory)
    blame.enter(blame.number_of("ö" * 500, "select_victims"), 1.0)
    culprit = read_blame(memory)

    assert culprit is not None
    assert culprit.hook == "select_victims"
    assert culprit.policy.startswith("ö" * 50)


def test_a_full_table_blames_nobody_rather_than_another():
    memory = bytearray(SIZE)
    blame = Blame(memory)
    numbers = [blame.number_of(f"p{index}", "hook") for index in range(1100)]
    blame.enter(numbers[1022], 1.0)
    assert read_blame(memory) == Culprit("p1022", "hook", 1.0)
    blame.enter(numbers[1023], 2.0)
    assert read_blame(memory) is None


def test_changes_of_policies_for_ever_do_not_fill_the_table():
    """All built-in policies, in all their hooks, in and out; and room for ten times as many."""
    blame = Blame(bytearray(SIZE))
    names = [(policy, hook) for policy, cls in BUILTIN.items() for hook in hooks_of(cls)]
    assert len(names) > 40
    for _ in range(50):
        numbers = {blame.number_of(*name) for name in names}

    assert numbers == {*range(1, len(names) + 1)}
    assert 10 * len(names) < 1023


@pytest.mark.parametrize("byte", [1, 200, 255])
def test_memory_that_was_scribbled_over_is_read_without_an_error(byte: int):
    read_blame(bytearray([byte] * SIZE))
