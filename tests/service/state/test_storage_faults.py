"""Errors caused by the machine."""

import errno
import os
from pathlib import Path

import pytest

from forebay_worker.state.storage_faults import storage_fault


@pytest.mark.parametrize("number", [errno.EIO, errno.ENODEV, errno.ESTALE])
def test_lost_disk_is_a_fault_with_the_remedy(number):
    """Errors of the system and of RocksDB are recognised alike."""
    for error in (OSError(number, os.strerror(number)), Exception(f"IO error: {os.strerror(number)}: 000008.sst")):
        reported = storage_fault(error, Path("/state"))
        assert reported is not None
        assert os.strerror(number) in reported
        assert "restart the worker with an empty directory" in reported


def test_a_damaged_store_is_no_obstacle():
    assert storage_fault(Exception("Corruption: block checksum mismatch"), Path("/state")) is None
