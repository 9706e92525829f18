"""A disk of the judge that is slow passes few bytes a second, of what the machine does not have in memory."""

import time

import pytest

from tests.chaos.disks import SLOW_BYTES_PER_SECOND, Disk, can_mount, can_slow_down, cool


def test_a_slow_disk_is_slow_until_it_is_sped_up(tmp_path):
    if not (can_mount() and can_slow_down()):
        pytest.skip("no disk can be mounted here, or none slowed down")
    disk = Disk(tmp_path / "disk")
    path = disk.path / "some.sst"

    def read_s() -> float:
        cool(disk.path)
        began_s = time.monotonic()
        path.read_bytes()
        return time.monotonic() - began_s

    try:
        path.write_bytes(bytes(SLOW_BYTES_PER_SECOND // 2))
        cool(disk.path)
        disk.slow_down()
        assert read_s() > 0.3
        disk.speed_up()
        assert min(read_s() for _ in range(10)) < 0.3
    finally:
        disk.close()
