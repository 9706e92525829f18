"""What readers learn of a replica while a batch is applied to it, and of its age."""

import time
from dataclasses import replace

import pytest

from forebay.clock import boot_ms, epoch_ms
from forebay.lag import EndOffset, lag_of
from forebay.state_store import CommittedOffset
from forebay.store_spec import StoreSpec
from forebay.task_ids import TaskId, TopicPartition
from forebay_changelog import Batch, Heartbeat
from forebay_changelog.record_headers import heartbeat_key
from forebay_worker.state.memory import MemoryStore
from forebay_worker.tasks.apply import apply_batch, checkpoint_caught_up, resume
from forebay_worker.tasks.replica import Replica

TP = TopicPartition("log", 0)
SPEC = StoreSpec("s", "key-value", "string", "json", "murmur2", "log", 1)


def batch(position: int, *records: tuple[bytes, bytes | None, bool]) -> Batch:
    """The next records of a log, up to its end."""
    rows = [
        (position - len(records) + i, key, value, 0, is_heartbeat)
        for i, (key, value, is_heartbeat) in enumerate(records)
    ]
    return Batch(TP, rows, position, False, EndOffset(position, boot_ms()), 0, 0, "identity")


def beat(writer: str, as_of_ms: int | None) -> tuple[bytes, bytes | None, bool]:
    return heartbeat_key(writer), Heartbeat(as_of_ms, "q", 1).value(), True


class Watched(MemoryStore):
    """Notes what readers know of the replica when a write begins, and once it is visible."""

    def __init__(self) -> None:
        super().__init__("s")
        self.replica = Replica.opened(SPEC, TaskId(0, 0), self)
        self.known: list[tuple[int, int]] = []

    def commit(self, changelog_offsets):
        for _ in ("before", "after"):
            self.known.append((self.replica.view.progress.applying_to, self.replica.view.progress.position))
            super().commit(changelog_offsets)


def test_applying_to_is_published_before_the_write():
    store = Watched()
    apply_batch(store.replica, batch(2, (b"a", b"1", False), (b"b", b"1", False)))
    apply_batch(store.replica, batch(5, (b"a", b"2", False), (b"b", b"2", False), (b"c", b"2", False)))
    # The position follows once the content is there.
    assert store.known == [(2, 0), (2, 0), (5, 2), (5, 2)]
    assert (store.replica.view.progress.position, store.replica.view.progress.applying_to) == (5, 5)


def test_age_is_unknown_while_one_of_the_writers_cannot_tell():
    replica = Replica.opened(SPEC, TaskId(0, 0), MemoryStore("s"))
    now_ms = int(time.time() * 1000)

    def age_ms() -> int | None:
        return lag_of(replica.view.progress, boot_ms()).age_ms

    apply_batch(replica, batch(1, beat("a", now_ms - 5_000)))
    assert 5_000 <= (age_ms() or 0) < 10_000
    apply_batch(replica, batch(2, beat("b", None)))
    assert age_ms() is None
    apply_batch(replica, batch(3, beat("b", now_ms - 60_000)))
    assert 60_000 <= (age_ms() or 0) < 70_000


def test_stream_time_is_the_largest_window_end():
    """Whatever order windows come in: what has expired stays expired."""
    spec = replace(SPEC, kind="window", window_size_ms=1_000, retention_ms=10_000)
    replica = Replica.opened(spec, TaskId(0, 0), MemoryStore("s"))
    starts = (5_000, 90_000, 20_000)
    records = [(b"k" + start.to_bytes(8, "big"), b"1", False) for start in starts]
    apply_batch(replica, batch(3, *records))
    assert replica.view.stream_time_ms == 91_000
    apply_batch(replica, batch(4, records[0]))
    assert replica.view.stream_time_ms == 91_000


def test_a_clock_that_is_set_back_makes_no_replica_younger(monkeypatch):
    """A replica that is followed again counts from stored moments, which are of the wall clock."""
    replica = Replica.opened(SPEC, TaskId(0, 0), MemoryStore("s"))
    resume(replica, CommittedOffset(0))
    stored = epoch_ms() - 60_000
    committed = CommittedOffset(1, 1, restored=True, last_caught_up_epoch_ms=stored, end_reached_epoch_ms=stored)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 50)
    resume(replica, committed)
    assert lag_of(replica.view.progress, boot_ms()).time_lag_ms >= 60_000


def test_an_idle_log_advances_the_stored_moment():
    """A restart must not look like an absence of as long as nothing was written."""
    replica = Replica.opened(SPEC, TaskId(0, 0), MemoryStore("s"))
    apply_batch(replica, batch(1, (b"a", b"1", False)))
    before = replica.view.store.committed_offset(TP)
    assert before is not None
    assert before.last_caught_up_epoch_ms is not None
    until = replica.view.progress.last_caught_up_boot_ms
    assert until is not None
    replica.publish(
        progress=replica.view.progress._replace(
            last_caught_up_boot_ms=until + 60_000, end_reached_boot_ms=until + 60_000
        )
    )
    checkpoint_caught_up(replica)
    after = replica.view.store.committed_offset(TP)
    assert after is not None
    assert after.position == before.position
    for moment in (after.last_caught_up_epoch_ms, after.end_reached_epoch_ms):
        assert moment == pytest.approx(before.last_caught_up_epoch_ms + 60_000, abs=100)
