"""Arrays as bytes."""

import numpy as np
import pytest

from cadenza.wire.arrays import pack_ids, view_ids, view_requests


@pytest.mark.parametrize("ids", [[], [0], [1, 2, 2**31 - 1], np.array([3, 4])])
def test_ids_come_back(ids):
    assert view_ids(pack_ids(ids)).tolist() == list(ids)


def test_an_id_over_32_bits_is_refused():
    with pytest.raises(OverflowError):
        pack_ids([2**31])


def test_views_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        view_requests(b"\0" * 8)[0] = 1
