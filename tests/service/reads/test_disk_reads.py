"""Reads from disk leave the event loop to others."""

import asyncio
import threading
from collections.abc import Set
from typing import Any

from forebay_worker.reads import disk_reads
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


class Disk:
    """A store that notes which keys are read together; ``held`` ones wait for ``go_on``."""

    name = "counts"

    def __init__(self, held: Set[bytes] = frozenset()) -> None:
        self.read_together: list[list[bytes]] = []
        self.held, self.go_on = held, threading.Event()

    def get_many(self, keys: list[bytes]) -> Any:
        self.read_together.append(keys)
        if self.held & set(keys):
            assert self.go_on.wait(20)


async def read(reads: DiskReads, disk: Disk, *keys: bytes) -> None:
    ended = [asyncio.Event() for _ in keys]
    for key, event in zip(keys, ended, strict=True):
        reads.begin(NotInMemory(disk, key), event.set)  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        for event in ended:
            await event.wait()


async def test_a_read_waits_for_no_timer_while_nobody_reads(monkeypatch):
    monkeypatch.setattr(disk_reads, "_PATIENCE_S", 3_600.0)
    reads, disk = DiskReads(lambda: True), Disk()
    try:
        for number in range(20):
            await read(reads, disk, b"%d" % number)
    finally:
        reads.close()


async def test_a_key_that_waits_behind_a_slow_one_is_read_by_another_thread():
    reads, disk = DiskReads(lambda: True), Disk(held={b"slow"})
    try:
        slow = asyncio.create_task(read(reads, disk, b"slow"))
        while not disk.read_together:  # noqa: ASYNC110 (it is set in a thread)
            await asyncio.sleep(0.001)
        await read(reads, disk, b"other")
        assert not slow.done()
        disk.go_on.set()
        await slow
    finally:
        disk.go_on.set()
        reads.close()


async def test_a_batch_has_few_keys_waiting_and_none_once_its_client_has_left(monkeypatch):
    monkeypatch.setattr(disk_reads, "not_in_memory", NotInMemory)
    reads, disk = DiskReads(lambda: True), Disk(held={b"%d" % number for number in range(1_000)})
    try:
        batch = asyncio.create_task(reads.bring((disk, b"%d" % number) for number in range(1_000)))  # type: ignore[misc]
        while not disk.read_together:  # noqa: ASYNC110 (it is set in a thread)
            await asyncio.sleep(0.001)
        assert reads.counts == {"counts": disk_reads._MAX_OF_A_BATCH}
        batch.cancel()
        disk.go_on.set()
        await read(reads, disk, b"other")
        assert sum(map(len, disk.read_together)) <= disk_reads._MAX_OF_A_BATCH + 1
    finally:
        disk.go_on.set()
        reads.close()


async def test_a_batch_of_few_keys_waits_for_all_of_them(monkeypatch):
    monkeypatch.setattr(disk_reads, "not_in_memory", NotInMemory)
    reads, disk = DiskReads(lambda: True), Disk(held={b"2"})
    try:
        batch = asyncio.create_task(reads.bring((disk, b"%d" % number) for number in range(3)))  # type: ignore[misc]
        while not disk.read_together:  # noqa: ASYNC110 (it is set in a thread)
            await asyncio.sleep(0.001)
        await read(reads, disk, b"other")
        assert not batch.done()
        disk.go_on.set()
        async with asyncio.timeout(20):
            await batch
    finally:
        disk.go_on.set()
        reads.close()


async def test_all_keys_of_a_batch_are_read(monkeypatch):
    monkeypatch.setattr(disk_reads, "not_in_memory", NotInMemory)
    reads, disk = DiskReads(lambda: True), Disk()
    try:
        async with asyncio.timeout(20):
            await reads.bring((disk, b"%d" % number) for number in range(1_000))  # type: ignore[misc]
            await reads.bring([])
        assert sorted(key for keys in disk.read_together for key in keys) == sorted(
            b"%d" % n for n in range(1_000)
        )
    finally:
        reads.close()
