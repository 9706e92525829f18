"""Stores whose topics others write: bad records stop them or are skipped, and are never served."""

import base64
import errno
import re
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.codecs.values import headed
from forebay.lag import EndOffset
from forebay.log_epochs import EpochStart, OffsetAndEpoch
from forebay.state_store import CommittedOffset
from forebay.store_spec import StoreSpec
from forebay.stored_keys import END_OF_USER_KEYS, USER_TAG
from forebay.stored_values import STAMP_SIZE
from forebay.task_ids import TaskId, TopicPartition
from forebay_changelog import Batch, Heartbeat, Record, heartbeat_key
from forebay_changelog.record_documents import record_document
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory
from forebay_worker.tasks.applier_thread import Applier
from forebay_worker.tasks.apply import apply_batch
from forebay_worker.tasks.bulk_restore import BulkRestore
from forebay_worker.tasks.folding import Fold, advance, fold_batch
from forebay_worker.tasks.record_check import BadRecord, fitting
from forebay_worker.tasks.replica import Replica
from tests.support.cluster import wait_until
from tests.support.held_tasks import unexpected

TP = TopicPartition("clicks", 0)


def spec(key: str = "string", value: str = "json", **fields: object) -> StoreSpec:
    fields = {"external": True, "on_bad_value": "stop", **fields}
    return StoreSpec("s", fields.pop("kind", "key-value"), key, value, "murmur2", TP.topic, 1, **fields)


STOPS = spec()
SKIPS = spec(on_bad_value="skip")


def batch(*rows: tuple[bytes | None, bytes | None]) -> Batch:
    records: list[Record] = [(offset, key, value, 0, False) for offset, (key, value) in enumerate(rows, 7)]  # type: ignore[misc]
    return Batch(TP, records, 7 + len(rows), False, EndOffset(100, 0.0), 0, 0, "log")


@pytest.mark.parametrize(
    ("store", "key", "value", "complaint"),
    [
        (spec(), None, b"1", "it has no key"),
        (spec("bytes", "bytes"), None, b"1", "it has no key"),
        (spec(), b"\xff", b"1", r"its key b'\xff' is not a valid string key"),
        (spec("int64"), b"1234567", b"1", "its key b'1234567' is not a valid int64 key"),
        (spec("int32"), b"12345678", b"1", "is not a valid int32 key"),
        (spec("json"), b"{]", b"1", "is not a valid json key"),
        (spec("json"), b'[ "a" ]', b"1", "it is not in canonical form (RFC 8785)"),
        (spec("json"), b"[9007199254740993]", b"1", "is not a valid json key"),
        (spec("json"), rb'["\ud800"]', b"1", "is not a valid json key"),
        (spec("json"), b"[" * 100_000, b"1", "is not a valid json key"),
        (spec(), b"k", b"[" * 100_000, "is not a valid json"),
        (spec(), b"k", b"\xef\xbb\xbf1", "is not a valid json"),
        (spec(), b"k", '"a"'.encode("utf-16"), "is not a valid json"),
        (spec(), b"k", b'"\xed\xa0\x80"', "is not a valid json"),
        (spec(), b"k", b"NaN", "its value b'NaN' is not a valid json"),
        (spec(), b"k", b'{"x": Infinity}', "is not a valid json"),
        (spec(), b"k", b"-Infinity", "is not a valid json"),
        (spec(), b"k", b"", "its value b'' is not a valid json"),
        (spec(), b"k", b"\x00\x00\x00\x00\x07avro", "is not a valid json"),
        (spec(value="int64"), b"k", b"1234567", "its value b'1234567' is not a valid int64"),
        (spec(value="double"), b"k", struct.pack(">f", 1.5), "is not a valid double"),
        (spec(value="string"), b"k", b"\xc3", "is not a valid string"),
        (spec(kind="window", window_size_ms=1, retention_ms=1), b"1234567", b"1", ""),
    ],
)
def test_bad_record_is_named_by_topic_partition_and_offset(store, key, value, complaint):
    found = fitting(store, batch((key, value)))
    assert (found.batch.records, found.batch.position) == ([], 7)
    assert "offset 7 of 'clicks', partition 0, does not fit the store 's'" in str(found.stopped_by)
    assert complaint in str(found.stopped_by)
    assert 'on_bad_value = "skip"' in str(found.stopped_by)


@pytest.mark.parametrize(
    ("store", "key", "value"),
    [
        (spec(), b"k", b'{"x": [1.5, null, "\xc3\xa9"]}'),
        (spec(), b"k", None),
        (spec(), b"", b"null"),
        (spec("int64", "int64"), b"12345678", b"12345678"),
        (spec("int32", "double"), b"1234", struct.pack(">d", float("nan"))),
        (spec("json"), b'["a",1]', b"1"),
        (spec("bytes", "bytes"), b"\xff", b"\x00"),
        (spec(kind="window", window_size_ms=1, retention_ms=1), b"a" + bytes(8), b"1"),
    ],
)
def test_a_record_that_fits_is_left_as_it_is(store, key, value):
    whole = batch((key, value))
    assert fitting(store, whole) == (whole, 0, None)


def test_records_before_a_bad_one_are_applied():
    """The ones behind it are not."""
    found = fitting(STOPS, batch((b"a", b"1"), (b"b", b"NaN"), (b"c", b"3")))
    assert [record[1] for record in found.batch.records] == [b"a"]
    assert found.batch.position == 8
    assert "offset 8 of 'clicks'" in str(found.stopped_by)


def test_replica_stopped_within_a_replay_is_inconsistent():
    """It is at no point of the log's history."""
    # What compaction took had its successor beyond the bad record, where the log was read to its end.
    read = batch((b"b", b"1"), (b"c", b"{bad"), (b"a", b"2"))
    read = read._replace(gap=True, end_reached=True, end=EndOffset(read.position, 0.0))
    before = CommittedOffset(0)
    skipped = advance(before, fitting(SKIPS, read).batch, Fold.after(before), None, 0.0)
    assert (skipped.consistent_position, skipped.pending_end) == (read.position, None)
    stopped = advance(before, fitting(STOPS, read).batch, Fold.after(before), None, 0.0)
    assert (stopped.position, stopped.consistent_position, stopped.pending_end) == (8, None, read.position)


@pytest.mark.parametrize(
    ("value", "bad"),
    [("double", b"1"), ("int64", b"1"), ("string", b"\xff"), ("json", b'1,"lag":{}')],
)
def test_values_are_checked_whoever_is_said_to_write_them(value, bad):
    """One that is no JSON would add members to its answers, or spoil its page or batch."""
    named = spec(value=value, external=False)
    assert named.validated
    stopped_by = fitting(named, batch((b"k", bad))).stopped_by
    assert stopped_by is not None
    assert 'Set external = true and on_bad_value = "skip"' in str(stopped_by)
    assert not spec(value="bytes", external=False).validated


def test_skipped_records_are_counted_and_passed():
    found = fitting(SKIPS, batch((b"a", b"1"), (None, b"2"), (b"b", b"NaN"), (b"c", b"3")))
    assert [record[1] for record in found.batch.records] == [b"a", b"c"]
    assert (found.batch.position, found.skipped, found.stopped_by) == (11, 2, None)


def test_a_skipped_record_is_part_of_the_proof():
    """Others between the proof and the position show that the log was cut."""
    read = batch((b"a", b"1"), (b"b", b"NaN"))._replace(epochs=(EpochStart(7, 3), EpochStart(8, 4)))
    found = fitting(SKIPS, read).batch
    assert found.proof(None) == read.proof(None) == OffsetAndEpoch(9, 4)
    assert found._replace(records=[]).proof(OffsetAndEpoch(5, 2)) == OffsetAndEpoch(9, 4)
    before = CommittedOffset(7)
    assert advance(before, found, Fold.after(before), None, 0.0).epochs == read.epochs


def test_heartbeats_are_not_held_against_the_codecs():
    beat: Record = (7, heartbeat_key("w"), Heartbeat(5, "q", 1).value(), 0, True)
    retired: Record = (8, heartbeat_key("w"), None, 0, True)
    whole = Batch(TP, [beat, retired], 9, False, EndOffset(9, 0.0), 0, 0, "log")
    assert fitting(spec("int64", "int64"), whole).batch == whole


@pytest.mark.parametrize("value", [b"{}", b"5", b"soon", b'{"as_of_ms": "soon", "query_id": "q", "batch_id": 1}'])
def test_what_only_looks_like_a_heartbeat_is_a_bad_record(value):
    beat: Record = (7, heartbeat_key("w"), value, 0, True)
    found = fitting(SKIPS, batch((b"a", b"1"))._replace(records=[beat]))
    assert (found.batch.records, found.skipped) == ([], 1)


class Log:
    def __init__(self, directory: Path) -> None:
        self.changelog = SqliteChangelog(directory)
        self.changelog.ensure_topic(TP.topic, 1)
        self._batches = 0

    def append(self, *rows: tuple[bytes, bytes | None]) -> None:
        self._batches += 1
        sqlite_batches.append_batch(
            self.changelog.path(TP),
            [(key, value, int(time.time() * 1000)) for key, value in rows],
            writer="w",
            query_id="q",
            batch_id=self._batches,
            write_name="w",
        )


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path / "log")
    log.append((b"a", b"1"), (b"b", b"NaN"), (b"a", b"2"))
    return log


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    store = RocksDbStore("s", tmp_path / "store", RocksDbMemory(8 << 20, 8 << 20).options())
    store.commit({})
    replica = Replica.opened(STOPS, TaskId(0, 0), store)
    yield replica
    replica.view.store.close()


def content(replica: Replica) -> dict[bytes, bytes]:
    return {key[1:]: value[STAMP_SIZE:] for key, value in replica.view.store.scan(USER_TAG, END_OF_USER_KEYS)}


def test_applier_stops_at_a_bad_record_until_it_may_skip(log, replica, monkeypatch, caplog):
    monkeypatch.setattr("forebay_worker.tasks.applier_thread._RETRY_MS", 20.0)
    applier = Applier(log.changelog, 0, lambda error: None, unexpected, lambda _: None, lambda: None)
    follow, tried = applier._assign, []

    def try_again(*arguments: Any) -> None:
        tried.append(arguments)
        follow(*arguments)

    monkeypatch.setattr(applier, "_assign", try_again)
    applier.start()
    try:
        applier.run(lambda: applier.follow(replica))
        wait_until(lambda: replica.failure, "the stop")
        assert "offset 1 of 'clicks', partition 0" in replica.failure
        assert (content(replica), replica.view.progress.position, replica.view.restored) == (
            {b"a": b"1"},
            1,
            False,
        )
        log.append((b"c", b"3"))
        # The lag says what is missing.
        wait_until(lambda: replica.view.progress.end_offset == 4, "another try")
        wait_until(lambda: len(tried) > 5, "several more")
        # The disk is not to be filled with one line.
        assert caplog.text.count("could not be applied") == 1
        assert (content(replica), replica.view.progress.position) == ({b"a": b"1"}, 1)
        replica.publish(spec=SKIPS)
        wait_until(lambda: replica.view.restored, "the end of the log")
        assert content(replica) == {b"a": b"2", b"c": b"3"}
        assert (replica.failure, replica.records.skipped) == (None, 1)
    finally:
        applier.stop()


def test_skipped_record_counts_once_despite_failed_commits(replica, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    replica.publish(spec=SKIPS)
    bad = Batch(TP, [(0, b"b", b"NaN", 0, False)], 1, False, EndOffset(1, 0.0), 0, 0, "log")
    with monkeypatch.context() as full:
        full.setattr(replica.view.store, "commit", refuse)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                apply_batch(replica, bad)
    apply_batch(replica, bad)
    assert replica.records.skipped == 1


def test_bulk_restore_leaves_a_bad_record_to_the_applier(log, replica, tmp_path):
    """It goes on itself where the record may be skipped."""
    done: list[object] = []

    def run(function: Callable[[], None]) -> None:
        function()

    scratch = tmp_path / "scratch"
    bulk = BulkRestore(
        log.changelog.url, 1, scratch, run, repr, lambda *_: None, unexpected, done.append, unexpected
    )
    try:
        bulk.submit(replica)
        wait_until(lambda: done, "the end of the job")
        assert (content(replica), replica.view.progress.position) == ({b"a": b"1"}, 1)
        replica.publish(spec=SKIPS)
        bulk.submit(replica)
        wait_until(lambda: len(done) == 2, "the end of the restore")
        assert content(replica) == {b"a": b"2"}
        assert (replica.view.store.committed_offset(TP).restored, replica.records.skipped) == (True, 1)
    finally:
        bulk.stop()


@pytest.mark.parametrize(("store", "key"), [(spec(), None), (spec("int64"), b"1234567")])
def test_a_key_that_no_store_could_hold_says_how_to_get_past_it(store, key):
    own, read = replace(store, external=False), batch((b"12345678", b"1"), (key, b"1"))
    folded = fold_batch(own, CommittedOffset(0), read)
    assert isinstance(folded.stopped_by, BadRecord)
    assert re.search(r"offset 8 of 'clicks' .* set external = true on the store", str(folded.stopped_by))
    assert (folded.batch.records, folded.batch.position) == (read.records[:1], 8)


def test_a_time_that_no_stored_key_can_hold_is_named():
    versioned = spec(kind="versioned", history_retention_ms=1)
    records: list[Record] = [(7, b"k", b"1", 1 << 70, False)]
    found = fitting(versioned, batch()._replace(records=records))
    assert "does not fit into 64 bits" in str(found.stopped_by)


def test_a_bad_value_is_named_without_the_headers_that_are_kept_with_it():
    """Operators look for what was written."""
    kept = headed(b"{bad", [("trace", b"4bf9" * 20)])
    store, [record] = spec(record_headers=True), (found := batch((b"a", kept))).records
    error = fitting(store, found).stopped_by
    assert "its value b'{bad' is not a valid json" in str(error)
    shown = record_document(store, 0, record)
    assert base64.b64decode(shown["value_base64"]) == b"{bad"
