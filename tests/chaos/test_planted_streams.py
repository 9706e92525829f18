"""Followers of a real store, with faults planted in what they are sent: the judge finds each."""

import asyncio
import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.clock import boot_ms
from forebay_web.store_changes.selection import KeySelection
from forebay_worker.reads.admission import Admission
from forebay_worker.tasks.recent_changes import RecentChanges
from tests.chaos.checker import check
from tests.chaos.history import Followed, History, Read, Record, value_of
from tests.chaos.store_streams import of_event, reached_of
from tests.service.reads.test_changes_pages import Served
from tests.service.reads.test_store_followers import Clients, received

FOLLOWED = Followed("s", "opened", partitions=(0,))
STATE = (("k", 1), ("a", 2), ("b", 3))
MEANWHILE = (("a", 4), ("b", None), ("a", 5))


class JudgedReplica:
    """A replica whose records are noted as the judge's writer does."""

    def __init__(self, directory: Path) -> None:
        self.served = Served(directory)
        self.store = self.served.selection.spec.name
        self.records: list[Record] = []

    def apply(self, *rows: tuple[str, int | None]) -> None:
        begin = self.served.replica.view.progress.position
        for offset, (key, serial) in enumerate(rows, begin):
            self.records.append(Record(self.store, 0, offset, (key,), serial, *[boot_ms()] * 4))
        encoded = [(key, None if one is None else json.dumps(value_of((key,), one))) for key, one in rows]
        self.served.apply(*[(key.encode(), None if one is None else one.encode()) for key, one in encoded])

    async def follow(self, last_id: str = "", *rows: tuple[str, int | None]) -> list[Read]:
        """The events of a connection until its lag, and then those of some rows more."""
        read = Read("r", "store-change", "router", "t", self.store, boot_ms(), boot_ms(), 200)
        reads = [replace(read, followed=replace(FOLLOWED, reached=reached_of(last_id, FOLLOWED)))]

        async def take() -> None:
            for event in await received(events):
                self.last_id = event.id or last_id
                reads.append(of_event(replace(read, received_ms=boot_ms()), FOLLOWED, event))

        async with Clients(self.served).client(20, last_event_id=last_id) as events:
            while reads[-1].followed is None or reads[-1].followed.event != "lag":
                await take()
            if rows:
                self.apply(*rows)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(5):
                        while not reads[-1].items:
                            await take()
        return reads


def kinds(replica: JudgedReplica, reads: list[Read]) -> set[str]:
    return {found.kind for found in check(History(records=replica.records, reads=reads))}


def forget(replica: JudgedReplica) -> None:
    """Start the replica again, as far as followers notice."""
    replica.served.replica.view.recent_changes.restart(replica.served.replica.view.progress.position)


async def resumed(directory: Path, *, forgetting: bool) -> set[str]:
    """What is wrong after a follower was away, while values changed and one was deleted."""
    replica = JudgedReplica(directory)
    replica.apply(*STATE)
    reads = await replica.follow()
    replica.apply(*MEANWHILE)
    if forgetting:
        forget(replica)
    return kinds(replica, reads + await replica.follow(replica.last_id))


@pytest.mark.parametrize("forgetting", [False, True])
async def test_followers_are_sent_what_they_have_missed(tmp_path, forgetting):
    assert await resumed(tmp_path, forgetting=forgetting) == set()


async def test_a_stream_that_leaves_out_deletions_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(KeySelection, "names", lambda selection, stored: [])
    assert await resumed(tmp_path, forgetting=False) == {"missing-deletion"}


async def test_a_stream_without_the_reset_that_it_needs_is_found(tmp_path, monkeypatch):
    since = RecentChanges.since
    monkeypatch.setattr(RecentChanges, "since", lambda recent, *_: since(recent, recent._begin, recent.nonce))
    assert await resumed(tmp_path, forgetting=True) == {"missing-change", "missing-deletion"}


async def test_a_stream_that_a_replica_behind_it_continues_is_found(tmp_path, monkeypatch):
    ahead, behind = JudgedReplica(tmp_path / "ahead"), JudgedReplica(tmp_path / "behind")
    ahead.apply(*STATE, *MEANWHILE)
    behind.apply(*STATE)
    reads = await ahead.follow()
    monkeypatch.setattr(Admission, "require_position", lambda *_: None)
    assert kinds(ahead, reads + await behind.follow(ahead.last_id, *MEANWHILE[:1])) >= {"went-back"}
