"""Reads from disk leave the event loop to others."""

import asyncio
import threading
from typing import Any

from forebay_worker.reads.disk_reads import DiskReads
from forebay_worker.state.rocksdb import NotInMemory


async def test_the_loop_goes_on_while_a_disk_is_read():
    """However slow it is, and whatever comes of it."""
    go_on, read = threading.Event(), asyncio.Event()

    class Slow:
        name = "counts"

        def get_many(self, keys: list[bytes]) -> Any:
            assert go_on.wait(20)
            raise OSError("the disk is gone")

    reads = DiskReads(lambda: True)
    try:
        reads.begin(NotInMemory(Slow(), b"k"), read.set)  # type: ignore[arg-type]
        for _ in range(100):
            await asyncio.sleep(0)
        assert not read.is_set()
        go_on.set()
        async with asyncio.timeout(20):
            await read.wait()
        assert reads.counts == {"counts": 1}
    finally:
        go_on.set()
        reads.close()
