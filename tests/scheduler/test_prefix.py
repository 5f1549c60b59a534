"""Block keys: equal exactly for equal salt, tokens and everything before."""

import numpy as np

from cadenza.scheduler.prefix import NO_KEYS, BlockKeys, block_key, extend_keys, root_key


def chain(tokens: list[int], salt: str = "", size: int = 2) -> list[bytes]:
    num = len(tokens) // size
    return listed(extend_keys(NO_KEYS, salt, np.array(tokens, dtype=np.int32), size, num))


def listed(keys: BlockKeys) -> list[bytes]:
    return [keys[index] for index in range(len(keys))]


def test_equal_prefixes_have_equal_keys():
    assert chain([1, 2, 3, 4, 5, 6])[:2] == chain([1, 2, 3, 4, 9, 9])[:2]


def test_a_difference_changes_every_later_key():
    assert not set(chain([1, 2, 3, 4])) & set(chain([1, 9, 3, 4]))


def test_salts_do_not_share():
    assert not set(chain([1, 2, 3, 4])) & set(chain([1, 2, 3, 4], salt="tenant"))


def test_extending_is_the_same_as_computing_at_once():
    tokens = np.arange(8, dtype=np.int32)
    grown = NO_KEYS
    for num in (1, 3, 4):
        grown = extend_keys(grown, "", tokens, 2, num)

    assert listed(grown) == chain(tokens.tolist())


def test_a_salt_cannot_pass_for_a_block():
    parent = root_key("a")
    tokens = np.array([1, 2], dtype="<i4").tobytes()
    forged = "block\0" + parent.decode("latin1") + tokens.decode("latin1")

    assert root_key(forged) != block_key(parent, tokens)


def test_keys_are_a_chain_over_the_ids_as_little_endian_words():
    first = block_key(root_key("salt"), bytes([1, 0, 0, 0, 2, 0, 0, 0]))

    assert chain([1, 2, 772, 4], salt="salt") == [
        first,
        block_key(first, bytes([4, 3, 0, 0, 4, 0, 0, 0])),
    ]


def test_a_block_that_is_not_full_has_no_key():
    assert len(chain([1, 2, 3])) == 1


def test_extending_to_less_than_there_is_changes_nothing():
    keys = extend_keys(NO_KEYS, "", np.array([1, 2, 3, 4], dtype=np.int32), 2, 2)
    extended = extend_keys(keys, "", np.array([9, 9, 9, 9], dtype=np.int32), 2, 1)

    assert listed(extended) == chain([1, 2, 3, 4])


def test_keys_behind_some_are_the_others():
    keys = extend_keys(NO_KEYS, "", np.arange(6, dtype=np.int32), 2, 3)

    assert listed(keys.behind(0)) == listed(keys)
    assert listed(keys.behind(2)) == listed(keys)[2:]
    assert listed(keys.behind(3)) == []
