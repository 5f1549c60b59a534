"""Arrays as bytes."""

import numpy as np
import pytest

from cadenza.wire.arrays import pack_ids, read_ids, read_requests, view_ids


@pytest.mark.parametrize("ids", [[], [0], [1, 2, 2**31 - 1], np.array([3, 4])])
def test_ids_come_back(ids):
    assert view_ids(pack_ids(ids)).tolist() == list(ids)
    assert read_ids(pack_ids(ids)) == list(ids)


def test_an_id_over_32_bits_is_refused():
    with pytest.raises(OverflowError):
        pack_ids([2**31])


def test_views_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        view_ids(b"\0" * 4)[0] = 1


def test_requests_come_back():
    requests = [0, 2**40, 7]
    assert read_requests(np.array(requests, "<i8").tobytes()) == requests


@pytest.mark.parametrize("read", [read_ids, read_requests])
def test_bytes_that_are_no_elements_are_refused(read):
    with pytest.raises(ValueError, match="not a multiple of item size"):
        read(b"\0" * 13)
