"""What a step is told arrives whole, in one copy, aligned as kernels were compiled for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cadenza.engine.device import HostDevice
from cadenza.engine.uploads import Uploads
from tests.engine.fake_device import FakeDevice

ARRAYS = [
    np.arange(3, dtype=np.int64),
    np.array([], dtype=np.int32),
    np.array([[1.5, -2.0, 3.0]], dtype=np.float64),
    np.arange(40, dtype=np.int32).reshape(4, 10)[:, :7],
    np.array(2.5, dtype=np.float32).reshape(1),
]


@pytest.mark.parametrize("device", [HostDevice(), FakeDevice(None)], ids=["host", "beside"])
def test_arrays_arrive_as_they_were(device: HostDevice | FakeDevice) -> None:
    uploads = Uploads(device, torch.device("cpu"))
    for _ in range(2):
        sent = uploads.pack(ARRAYS)()

        assert len(sent) == len(ARRAYS)
        for array, tensor in zip(ARRAYS, sent, strict=True):
            assert tensor.numpy().dtype == array.dtype
            assert np.array_equal(tensor.numpy(), array)
            assert tensor.data_ptr() % 16 == 0


def test_memory_grows_with_what_is_sent_and_stays_where_it_is_otherwise() -> None:
    uploads = Uploads(HostDevice(), torch.device("cpu"))
    [small] = uploads.pack([np.ones(5, dtype=np.int64)])()
    [again] = uploads.pack([np.ones(50, dtype=np.int64)])()
    large = np.arange(1 << 16, dtype=np.int64)

    [grown] = uploads.pack([large])()

    assert small.data_ptr() == again.data_ptr()
    assert np.array_equal(grown.numpy(), large)


def test_nothing_to_send_is_nothing_sent() -> None:
    assert Uploads(HostDevice(), torch.device("cpu")).pack([])() == []
