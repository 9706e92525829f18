"""Stores with ``latest_by``: the highest order is what every replica has, however it came by the log."""

import contextlib
import itertools
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay.clock import boot_ms
from forebay.record_orders import LOWEST_ORDER, with_order
from forebay.state_store import CommittedOffset
from forebay.store_spec import StoreSpec
from forebay.stored_keys import END_OF_USER_KEYS, USER_TAG
from forebay.stored_values import STAMP_SIZE
from forebay.task_ids import TaskId, TopicPartition
from forebay.wire.parameters import ReadParameters
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_changelog.sqlite.compaction import CompactionLimits
from forebay_worker.reads.scans import latest_entries
from forebay_worker.reads.values import values_of
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory
from forebay_worker.tasks.applier_thread import Applier
from forebay_worker.tasks.bulk_restore import ingest
from forebay_worker.tasks.expiry import sweep
from forebay_worker.tasks.record_check import BadRecord
from forebay_worker.tasks.replica import Replica
from forebay_worker.tasks.restoration import Restoration
from forebay_worker.tasks.restore_process import RestoreJob, Restorer
from tests.support.held_tasks import unexpected

TP = TopicPartition("log", 0)
SPEC = StoreSpec("s", "key-value", "string", "json", "murmur2", "log", 1, latest_by="lsn")
KEYS = (b"", b"a", b"a\x00", b"b")
HIGHEST_ORDER = -LOWEST_ORDER - 1

Row = tuple[bytes, int, bytes | None]
"""A key, its order, and its value, None for a deletion."""


class Log:
    """A SQLite log of one partition, with all that was ever written to it."""

    def __init__(self, directory: Path) -> None:
        self.changelog = SqliteChangelog(directory)
        self.changelog.ensure_topic("log", 1)
        self.history: list[Row] = []
        self._batches = itertools.count()

    def append(self, *rows: Row) -> None:
        written_ms = int(time.time() * 1000) - 10_000_000
        sqlite_batches.append_batch(
            self.changelog.path(TP),
            [(with_order(key, order), value, written_ms) for key, order, value in rows],
            writer="s",
            query_id="q",
            batch_id=next(self._batches),
            write_name="s",
        )
        self.history += rows

    def compact(self) -> None:
        self.changelog.compact(SPEC, CompactionLimits(0, 0))

    def supersede(self) -> None:
        """Append a tombstone for each order that another has superseded, as Kafka's compaction is told of them."""
        highest = {key: max(order for one, order, _ in self.history if one == key) for key, _, _ in self.history}
        lower = {(key, order) for key, order, _ in self.history if order < highest[key]}
        if lower:
            self.append(*((key, order, None) for key, order in sorted(lower)))

    def compact_as_kafka(self) -> None:
        """Remove all but the last record of each key of the log, without knowing of orders."""
        with contextlib.closing(sqlite3.connect(self.changelog.path(TP))) as connection, connection:
            connection.execute(
                "DELETE FROM log WHERE offset NOT IN (SELECT max(offset) FROM log GROUP BY key) "
                "AND offset < (SELECT max(offset) FROM log)"
            )
            connection.execute("UPDATE state SET removed_to = next_offset")

    def latest(self, position: int) -> dict[bytes, bytes]:
        """What the records below a position make: the highest order of each key counts, of equals the last."""
        latest: dict[bytes, tuple[int, bytes | None]] = {}
        for key, order, value in self.history[:position]:
            if key not in latest or order >= latest[key][0]:
                latest[key] = order, value
        return {key: value for key, (_, value) in latest.items() if value is not None}


class Follower:
    """A replica in RocksDB that is brought forward live or in bulk, swept, closed and opened again."""

    def __init__(self, log: Log, directory: Path) -> None:
        self._log, self._directory = log, directory
        self._jobs = itertools.count()
        self._open()

    def _open(self) -> None:
        store = RocksDbStore("s", self._directory / "store", RocksDbMemory(1 << 20, 1 << 20).options())
        store.commit({})
        self.applier = Applier(
            self._log.changelog, 0, lambda error: None, unexpected, lambda _: None, lambda: None
        )
        self.replica = Replica.opened(SPEC, TaskId(0, 0), store)
        self.applier.follow(self.replica)

    def close(self) -> None:
        self.applier._consumer.close()
        self.replica.view.store.close()

    def reopen(self) -> None:
        self.close()
        self._open()

    def poll(self, most: int) -> None:
        for batch in self.applier._consumer.poll(most):
            for part in batch.slices(2):
                assert self.applier.apply(self.replica, part)

    def restore(self) -> None:
        """To the end of the log, in files of a few records each."""
        self.applier.unfollow(self.replica)
        committed = self.replica.view.store.committed_offset(TP) or CommittedOffset(0)
        scratch = self._directory / "scratch"
        scratch.mkdir(exist_ok=True)
        job = RestoreJob(
            next(self._jobs),
            self._log.changelog.url,
            SPEC.document(),
            0,
            committed.document(),
            None,
            str(scratch),
            1,
            9.0,
        )
        restorer = Restorer()
        for report in restorer.run(job):
            if report.path is not None:
                assert ingest(Restoration(self.replica, 1, boot_ms()), report)
        restorer.close()
        self.replica = Replica.opened(SPEC, TaskId(0, 0), self.replica.view.store)
        self.applier.follow(self.replica)

    def sweep(self) -> None:
        sweep(self.replica)

    def check(self) -> None:
        progress = self.replica.view.progress
        if progress.consistent_position != progress.position:
            return
        latest = self._log.latest(progress.position)
        values = values_of(self.replica, list(KEYS), ReadParameters(), 1 << 20)
        contents = [value if value is None else value[STAMP_SIZE:] for value in values]
        assert contents == [latest.get(key) for key in KEYS]
        for reverse in (False, True):
            for size in (1, 2, 7):
                expected = sorted(latest.items(), reverse=reverse)
                assert list(listed(self.replica, size, reverse=reverse)) == expected


def listed(replica: Replica, size: int, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
    scan = replica.view.store.scan(USER_TAG, END_OF_USER_KEYS, reverse=reverse)
    chunks = iter(lambda: list(itertools.islice(scan, size)), [])
    for entries in latest_entries(chunks, SPEC.stored_keys, reverse=reverse):
        keys = SPEC.stored_keys.plains([stored for stored, _ in entries.pairs])
        yield from zip(keys, (value[STAMP_SIZE:] for _, value in entries.pairs), strict=True)


ORDERS = st.sampled_from([LOWEST_ORDER, -1, 0, 1, 2, 3, HIGHEST_ORDER])
ROWS = st.lists(
    st.tuples(st.sampled_from(KEYS), ORDERS, st.one_of(st.none(), st.sampled_from([b"0", b"1", b"2"]))),
    min_size=1,
    max_size=9,
)
REPLICAS = 2
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), ROWS),
        st.tuples(st.sampled_from(["compact", "compact_as_kafka", "supersede"]), st.none()),
        st.tuples(st.just("poll"), st.tuples(st.integers(0, REPLICAS - 1), st.integers(1, 5))),
        st.tuples(st.sampled_from(["restore", "reopen", "sweep"]), st.integers(0, REPLICAS - 1)),
    ),
    min_size=4,
    max_size=14,
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(steps=STEPS)
@example(steps=[("append", [(b"a", 1, b"1"), (b"a", 1, b"2")]), ("append", [(b"b", 0, b"0")]), ("compact", None)])
@example(steps=[("append", [(b"a", 1, b"1"), (b"b", 1, b"1")]), ("poll", (0, 5)), ("sweep", 0)])
def test_every_replica_has_the_highest_orders(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]]
) -> None:
    """Live or in bulk, in any slices, from any restart, whatever any compaction removed in between."""
    directory = tmp_path_factory.mktemp("latest")
    log = Log(directory / "log")
    followers = [Follower(log, directory / str(number)) for number in range(REPLICAS)]
    for step, argument in steps:
        if step == "append":
            log.append(*argument)
        elif argument is None:
            getattr(log, step)()
        elif step == "poll":
            followers[argument[0]].poll(argument[1])
            followers[argument[0]].check()
        else:
            getattr(followers[argument], step)()
            followers[argument].check()
    # One that comes last finds only what every compaction left.
    log.append((b"end", 0, None))
    followers.append(Follower(log, directory / "last"))
    for follower in followers:
        while follower.replica.view.progress.position < len(log.history):
            follower.poll(1_000)
        assert follower.replica.view.progress.consistent_position == len(log.history)
        follower.check()
        follower.close()


def test_sweep_leaves_one_entry_of_each_key(tmp_path: Path) -> None:
    """A tombstone that has the highest order stays."""
    log = Log(tmp_path / "log")
    log.append((b"a", 1, b"1"), (b"a", 3, None), (b"a", 2, b"2"), (b"b", 1, b"1"), (b"b", 1, b"2"))
    follower = Follower(log, tmp_path / "0")
    follower.poll(9)
    follower.sweep()
    stored = [
        SPEC.stored_keys.parse(key) for key, _ in follower.replica.view.store.scan(USER_TAG, END_OF_USER_KEYS)
    ]
    assert [(key.plain, key.times_ms) for key in stored] == [(b"a", (3,)), (b"b", (1,))]
    # What the deletion prevails over may come again.
    log.append((b"a", 2, b"2"))
    follower.poll(9)
    follower.check()
    follower.close()


def test_record_without_an_order_stops_the_replica(tmp_path: Path) -> None:
    """The error names the remedy."""
    log = Log(tmp_path / "log")
    log.append((b"a", 1, b"1"))
    sqlite_batches.append_batch(
        log.changelog.path(TP),
        [(b"customer-12345", b"1", 0)],
        writer="s",
        query_id="q",
        batch_id=9,
        write_name="s",
    )
    follower = Follower(log, tmp_path / "0")
    [batch] = follower.applier._consumer.poll(9)
    with pytest.raises(BadRecord, match=r"offset 1 .* does not end with an order.*changelog reset'\.$"):
        follower.applier.apply(follower.replica, batch)
    follower.close()
