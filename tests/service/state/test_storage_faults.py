"""Errors caused by the machine."""

import errno
import os
from pathlib import Path

import pytest

from forebay_worker.state.storage_faults import storage_fault


@pytest.mark.parametrize("number", [errno.EIO, errno.ENODEV, errno.ESTALE])
def test_a_disk_that_is_gone_is_told_with_the_remedy_by_system_and_rocksdb_alike(number):
    for error in (OSError(number, os.strerror(number)), Exception(f"IO error: {os.strerror(number)}: 000008.sst")):
        told = storage_fault(error, Path("/state"))
        assert told is not None
        assert os.strerror(number) in told
        assert "restart the worker with an empty directory" in told


def test_a_damaged_store_is_no_obstacle():
    assert storage_fault(Exception("Corruption: block checksum mismatch"), Path("/state")) is None
