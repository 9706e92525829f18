"""Bulk restore with real processes: what is ingested equals the log's fold, whatever happens to a process."""

import contextlib
import dataclasses
import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.errors import ChangelogError
from forebay.state_store import CommittedOffset
from forebay.store_spec import StoreSpec
from forebay.stored_keys import END_OF_USER_KEYS, USER_TAG
from forebay.stored_values import STAMP_SIZE, stamp
from forebay.task_ids import TaskId, TopicPartition
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite import log_file as sqlite_log_file
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_changelog.sqlite.consumer import SqliteConsumer
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory
from forebay_worker.tasks import bulk_restore, restoration
from forebay_worker.tasks.bulk_restore import BulkRestore
from forebay_worker.tasks.replica import Replica
from forebay_worker.tasks.restoration import Restoration
from forebay_worker.tasks.restore_process import RestoreJob, Restorer, RestoreReport
from tests.support.cluster import wait_until
from tests.support.disks import fill, small_disk
from tests.support.held_tasks import unexpected

TP = TopicPartition("log", 0)
RECORDS = 120_000
SPEC = StoreSpec("s", "key-value", "string", "json", "murmur2", "log", 1)


def record(offset: int) -> tuple[bytes, bytes | None]:
    return b"k%d" % (offset * 7 % 20_011), None if offset % 11 == 5 else b"%d" % offset


@pytest.fixture(scope="module")
def changelog(tmp_path_factory: pytest.TempPathFactory) -> SqliteChangelog:
    changelog = SqliteChangelog(tmp_path_factory.mktemp("log"))
    changelog.ensure_topic("log", 1)
    rows = [(*record(offset), 0) for offset in range(RECORDS)]
    sqlite_batches.append_batch(changelog.path(TP), rows, writer="s", query_id="q", batch_id=0, write_name="s")
    return changelog


@pytest.fixture(scope="module")
def folded() -> dict[bytes, bytes]:
    content: dict[bytes, bytes] = {}
    for offset in range(RECORDS):
        key, value = record(offset)
        content.pop(USER_TAG + key, None)
        if value is not None:
            content[USER_TAG + key] = value
    return content


class Restore:
    """A replica being restored; the caller's thread stands for the applier's, under a lock."""

    def __init__(self, changelog: SqliteChangelog, directory: Path, spec: StoreSpec = SPEC) -> None:
        store = RocksDbStore("s", directory / "store", RocksDbMemory(8 << 20, 8 << 20).options())
        store.commit({})
        self.replica = Replica.opened(spec, TaskId(0, 0), store)
        self.done: list[Restoration] = []
        self._lock = threading.Lock()
        self.bulk = BulkRestore(
            changelog.url,
            1,
            directory / "scratch",
            self._locked,
            repr,
            lambda *_: None,
            unexpected,
            self.done.append,
            unexpected,
        )

    def _locked(self, function: Callable[[], None]) -> None:
        with self._lock:
            function()

    def child(self) -> int:
        wait_until(lambda: self.bulk._children, "a restore process")
        return self.bulk._children[0].pid

    def finish(self) -> dict[bytes, bytes]:
        wait_until(lambda: self.done, "the end of the restore", 60)
        entries = self.replica.view.store.scan(USER_TAG, END_OF_USER_KEYS)
        return {key: value[STAMP_SIZE:] for key, value in entries}

    def close(self) -> None:
        self.bulk.stop()
        self.replica.view.store.close()


def test_restore_runs_no_module_of_the_current_directory(changelog, folded, tmp_path, monkeypatch):
    (tmp_path / "queue.py").write_text("import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()")
    monkeypatch.chdir(tmp_path)
    restore = Restore(changelog, tmp_path)
    restore.bulk.submit(restore.replica)
    assert restore.finish() == folded
    restore.close()
    assert not (tmp_path / "queue.ran").exists()


def test_a_restored_store_equals_the_fold_and_stands_at_the_end(changelog, folded, tmp_path, monkeypatch):
    # Small files, so that later ones overwrite and delete what earlier ones brought.
    monkeypatch.setattr(bulk_restore, "MAX_BYTES_IN_MEMORY", 3 << 20)
    restore = Restore(changelog, tmp_path)
    restore.bulk.submit(restore.replica)
    assert restore.finish() == folded
    committed = restore.replica.view.store.committed_offset(TP)
    assert (committed.position, committed.consistent_position, committed.restored) == (RECORDS, RECORDS, True)
    assert restore.done[0].records == RECORDS
    assert restore.replica.view.progress.position == RECORDS
    child = restore.child()
    restore.close()
    wait_until(lambda: not Path(f"/proc/{child}").exists(), "the end of the restore process")
    assert not (tmp_path / "scratch").exists()
    reopened = RocksDbStore("s", tmp_path / "store", RocksDbMemory(8 << 20, 8 << 20).options())
    assert reopened.committed_offset(TP) == committed
    entries = reopened.scan(USER_TAG, END_OF_USER_KEYS)
    assert {key: value[STAMP_SIZE:] for key, value in entries} == folded
    reopened.close()


def test_the_time_that_is_left_follows_from_the_pace_so_far(changelog, tmp_path, monkeypatch):
    now_ms = 1_000.0
    monkeypatch.setattr(restoration, "boot_ms", lambda: now_ms)
    replica = Restore(changelog, tmp_path).replica
    progressing = Restoration(replica, 1, now_ms, begun_position=100)
    replica.publish(progress=replica.view.progress._replace(position=100, end_offset=1_100))
    now_ms += 2_000
    assert progressing.seconds_left is None
    replica.publish(progress=replica.view.progress._replace(position=300))
    assert progressing.seconds_left == 8
    replica.publish(progress=replica.view.progress._replace(end_offset=None))
    assert progressing.seconds_left is None
    replica.view.store.close()


def test_leftover_link_to_an_ingested_file_is_not_written_to(changelog, folded, tmp_path, monkeypatch):
    """A killed worker leaves a file that a store has taken over by link."""
    monkeypatch.setattr(bulk_restore, "MAX_BYTES_IN_MEMORY", 3 << 20)
    (tmp_path / "scratch").mkdir()
    taken_over = tmp_path / "taken-over.sst"
    taken_over.write_bytes(b"what a store has")
    for number in range(3):
        # RocksDB links a file to its new name before it removes the old one.
        os.link(taken_over, tmp_path / "scratch" / f"1-{number}.sst")
    restore = Restore(changelog, tmp_path)
    restore.bulk.submit(restore.replica)
    assert restore.finish() == folded
    restore.close()
    assert taken_over.read_bytes() == b"what a store has"


def test_a_killed_process_costs_a_retry_and_never_a_gap(changelog, folded, tmp_path, monkeypatch):
    monkeypatch.setattr(bulk_restore, "MAX_BYTES_IN_MEMORY", 3 << 20)
    monkeypatch.setattr(restoration, "_RETRY_S", 0.05)
    restore = Restore(changelog, tmp_path)
    restore.bulk.submit(restore.replica)
    killed = set()
    for floor in (0, 40_000, 80_000):
        wait_until(
            lambda floor=floor: restore.replica.view.progress.position > floor or restore.done, "some progress", 30
        )
        child = restore.child()
        killed.add(child)
        os.kill(child, signal.SIGKILL)
        wait_until(lambda child=child: restore.bulk._children[:1] != [child] or restore.done, "another process")
    assert restore.finish() == folded
    assert restore.replica.view.store.committed_offset(TP).position == RECORDS
    assert len(killed) >= 2
    restore.close()


def test_file_that_does_not_continue_the_store_is_dropped(changelog, folded, tmp_path, monkeypatch):
    monkeypatch.setattr(restoration, "_RETRY_S", 0.05)
    restore = Restore(changelog, tmp_path)
    restore.bulk.submit(restore.replica)
    moved = CommittedOffset(1000, 1000)
    for offset in range(1000):
        key, value = record(offset)
        if value is None:
            restore.replica.view.store.delete(USER_TAG + key)
        else:
            restore.replica.view.store.put(USER_TAG + key, stamp(0) + value)
    # While the process folds from 0, something else brings the store to 1000.
    restore.replica.view.store.commit({TP: moved})
    assert restore.finish() == folded
    restore.close()


def test_a_cancelled_restore_leaves_the_store_as_it_is(changelog, tmp_path):
    restore = Restore(changelog, tmp_path)
    restore.bulk.submit(restore.replica)
    restore.bulk.cancel(restore.replica)
    other = Restore(changelog, tmp_path / "other")
    other.bulk.submit(other.replica)
    other.finish()
    assert not restore.done
    assert restore.replica.view.store.committed_offset(TP) is None
    restore.close()
    other.close()


def test_nothing_that_was_written_ahead_is_left_of_a_cancelled_restore(changelog, tmp_path, monkeypatch):
    """A task may be released and taken again many times before the worker ends."""
    monkeypatch.setattr(bulk_restore, "MAX_BYTES_IN_MEMORY", 128 << 10)
    restore, scratch = Restore(changelog, tmp_path), tmp_path / "scratch"
    with restore._lock:
        restore.bulk.submit(restore.replica)
        # The first file waits, while others are written.
        wait_until(lambda: scratch.exists() and len(list(scratch.iterdir())) > 1, "files written ahead")
        restore.bulk.cancel(restore.replica)
    wait_until(lambda: not list(scratch.iterdir()), "their deletion")
    assert not restore.bulk._children
    restore.close()


def test_a_late_file_of_a_cancelled_restore_blames_nobody(changelog, tmp_path, monkeypatch):
    """Its replica may be another's by now, or be rebuilt, and is not to report what the file met."""
    restore = Restore(changelog, tmp_path)

    def refuse(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bulk_restore, "ingest", refuse)
    late, settled = Restoration(restore.replica, 1, 0.0, cancelled=True), []
    restore.bulk._take_file(late, RestoreReport(1), settled.append)
    assert (settled, restore.replica.failure, restore.replica.storage_fault) == ([False], None, None)
    restore.close()


def test_a_job_that_cannot_be_done_is_tried_again(changelog, folded, tmp_path, monkeypatch):
    monkeypatch.setattr(restoration, "_RETRY_S", 0.05)
    monkeypatch.setattr(bulk_restore, "_PATIENCE_S", 0.5)
    path = Path(changelog.path(TP))
    away = path.with_suffix(".away")
    path.rename(away)
    restore = Restore(changelog, tmp_path)
    restore.bulk.submit(restore.replica)
    first = restore.child()
    wait_until(lambda: restore.bulk._children and restore.bulk._children[0].pid != first, "a second try", 30)
    away.rename(path)
    assert restore.finish() == folded
    restore.close()


def test_restored_misplaced_key_makes_misses_worthless(changelog, tmp_path):
    # All keys are in partition 0 of 2.
    restore = Restore(changelog, tmp_path, dataclasses.replace(SPEC, partitions=2))
    restore.bulk.submit(restore.replica)
    restore.finish()
    assert restore.replica.view.misplaced_keys
    restore.close()


def test_restore_without_any_process_is_given_up(changelog, tmp_path, monkeypatch):
    """The failure names the reason."""
    monkeypatch.setattr(restoration, "_RETRY_S", 0.01)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    restore = Restore(changelog, tmp_path)
    restore.bulk.submit(restore.replica)
    assert restore.finish() == {}
    assert restore.done[0].given_up
    assert "no restore process could be started" in restore.replica.failure
    restore.close()


@pytest.mark.parametrize("error", [OSError(errno.EAGAIN, "no more processes"), RuntimeError("unforeseen")])
def test_a_process_that_cannot_be_started_is_started_later(changelog, folded, tmp_path, monkeypatch, error):
    monkeypatch.setattr(restoration, "_RETRY_S", 0.05)
    restore = Restore(changelog, tmp_path)
    spawn, refusals = restore.bulk._spawn, [error]

    def refusing():
        if refusals:
            raise refusals.pop()
        return spawn()

    monkeypatch.setattr(restore.bulk, "_spawn", refusing)
    restore.bulk.submit(restore.replica)
    assert restore.finish() == folded
    restore.close()


def test_a_file_that_the_disk_refuses_is_logged_and_made_again(changelog, folded, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(restoration, "_RETRY_S", 0.05)
    restore = Restore(changelog, tmp_path)
    ingest, refusals = restore.replica.view.store.ingest, [OSError(errno.ENOSPC, "No space left on device")]

    def refusing(*arguments):
        if refusals:
            raise refusals.pop()
        ingest(*arguments)

    monkeypatch.setattr(restore.replica.view.store, "ingest", refusing)
    restore.bulk.submit(restore.replica)
    assert restore.finish() == folded
    assert "No space left" in caplog.text
    assert restore.replica.failure is None
    restore.close()


def test_a_full_disk_delays_a_restore_and_makes_it_no_slower(changelog, folded, tmp_path, monkeypatch):
    monkeypatch.setattr(restoration, "_RETRY_S", 0.01)
    monkeypatch.setattr(restoration, "_MAX_ATTEMPTS", 1)
    with small_disk(tmp_path / "disk") as disk:
        restore = Restore(changelog, disk)
        filler = fill(disk)
        restore.bulk.submit(restore.replica)
        wait_until(lambda: restore.replica.storage_fault, "the refusal", 30)
        assert restore.replica.storage_fault == restore.replica.failure
        assert f"{disk} cannot be written: No space left on device. Free some space" in restore.replica.failure
        filler.unlink()
        assert restore.finish() == folded
        assert restore.replica.storage_fault is None
        assert not restore.done[0].given_up
        restore.close()


def test_file_without_room_is_removed_and_retried_later(tmp_path, monkeypatch):
    monkeypatch.setattr(restoration, "_RETRY_S", 300.0)
    changelog = SqliteChangelog(tmp_path)
    changelog.ensure_topic("log", 1)
    rows = [(b"k%d" % i, b'"%b"' % os.urandom(1_000).hex().encode(), 0) for i in range(8_000)]
    sqlite_batches.append_batch(changelog.path(TP), rows, writer="s", query_id="q", batch_id=0, write_name="s")
    with small_disk(tmp_path / "disk") as disk:
        restore = Restore(changelog, disk)
        filler = fill(disk)
        # Half of what the file needs.
        os.truncate(filler, filler.stat().st_size - (4 << 20))
        restore.bulk.submit(restore.replica)
        waiting = restore.bulk.restoring(restore.replica)
        wait_until(lambda: waiting.refused, "the refusal", 30)
        assert waiting.retry_s == 600.0
        assert list(disk.glob("scratch/*.sst")) == []
        restore.close()


@pytest.mark.parametrize("shift", range(8))
def test_restore_stays_within_its_memory(tmp_path, shift):
    """The sizes of values may follow any pattern."""
    changelog = SqliteChangelog(tmp_path)
    changelog.ensure_topic("log", 1)
    rows = [(b"k%d" % i, b"1" if i % 8 == shift else b'"%b"' % (b"x" * 2_000), 0) for i in range(8_000)]
    sqlite_batches.append_batch(changelog.path(TP), rows, writer="s", query_id="q", batch_id=0, write_name="s")
    job = RestoreJob(1, changelog.url, SPEC.document(), 0, {"position": 0}, None, str(tmp_path), 3 << 20, 5.0)
    restorer = Restorer()
    *files, end = restorer.run(job)
    restorer.close()
    # What is read at once takes more than that.
    assert [file.records for file in files] == [2_000] * 4
    assert end.path is None


def test_hung_restore_process_is_killed_and_replaced(changelog, folded, tmp_path, monkeypatch):
    monkeypatch.setattr(restoration, "_RETRY_S", 0.01)
    monkeypatch.setattr(bulk_restore, "_SILENCE_MS", 300.0)
    restore = Restore(changelog, tmp_path)
    restore.bulk.submit(restore.replica)
    os.kill(hung := restore.child(), signal.SIGSTOP)

    def is_ended() -> bool:
        restore.bulk.kill_unresponsive()
        return hung not in [child.pid for child in restore.bulk._children]

    wait_until(is_ended, "the end of the process")
    assert restore.finish() == folded
    restore.close()


def test_restored_store_has_bloom_filters(changelog, tmp_path):
    restore = Restore(changelog, tmp_path)
    restore.bulk.submit(restore.replica)
    content = restore.finish()
    tables = restore.replica.view.store._db.property_value("rocksdb.aggregated-table-properties")
    sizes = dict(part.split("=") for part in tables.replace(" ", "").split(";") if part.count("=") == 1)
    assert int(sizes["filterblocksize"]) > len(content)
    restore.close()


def test_process_started_during_a_stop_is_killed(changelog, tmp_path):
    restore = Restore(changelog, tmp_path)
    bulk = restore.bulk
    bulk.stop()
    child = bulk._spawn()
    assert child.wait(20) == -signal.SIGKILL
    bulk._end(child)
    restore.replica.view.store.close()


def test_restore_with_dying_processes_is_given_up(changelog, tmp_path, monkeypatch):
    """The failure names the reason."""
    monkeypatch.setattr(restoration, "_RETRY_S", 0.01)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    restore = Restore(changelog, tmp_path)
    restore.bulk.submit(restore.replica)
    assert restore.finish() == {}
    assert restore.done[0].given_up
    assert restore.replica.failure == "its restore process ended before it was done"
    assert (restore.bulk.restoring(restore.replica), restore.bulk._children) == (None, [])
    restore.close()


def test_restore_with_a_lasting_error_is_given_up(changelog, tmp_path, monkeypatch):
    """The failure is the process's own error."""
    monkeypatch.setattr(restoration, "_RETRY_S", 0.01)
    report = RestoreReport(1, error="UnsupportedCodecError: of a later year", lasting=True)
    child = tmp_path / "child"
    child.write_text(f"#!/bin/sh\nread job\necho '{json.dumps(dataclasses.asdict(report))}'\n")
    child.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(child))
    restore = Restore(changelog, tmp_path)
    restore.bulk.submit(restore.replica)
    assert restore.finish() == {}
    assert restore.done[0].given_up
    assert restore.replica.failure == "UnsupportedCodecError: of a later year"
    restore.close()


def test_a_log_that_answers_and_delivers_nothing_ends_the_job(changelog, tmp_path, monkeypatch):
    poll = SqliteConsumer.poll
    monkeypatch.setattr(
        SqliteConsumer,
        "poll",
        lambda self, most: [batch._replace(records=[], position=0) for batch in poll(self, most)],
    )
    job = RestoreJob(1, changelog.url, SPEC.document(), 0, {"position": 0}, None, str(tmp_path), 1 << 20, 0.05)
    restorer = Restorer()
    with pytest.raises(ChangelogError, match="answers, but nothing after offset 0 is delivered"):
        list(restorer.run(job))
    restorer.close()


def test_a_log_that_cannot_be_read_ends_the_job_with_the_reason(tmp_path):
    changelog = SqliteChangelog(tmp_path / "log")
    changelog.ensure_topic("log", 1)
    rows = [(*record(offset), 0) for offset in range(4_000)]
    sqlite_batches.append_batch(changelog.path(TP), rows, writer="s", query_id="q", batch_id=0, write_name="s")
    with contextlib.closing(sqlite_log_file.connect(changelog.path(TP))) as connection:
        connection.execute("UPDATE log SET value = x'39' WHERE offset = 3000")
    job = RestoreJob(1, changelog.url, SPEC.document(), 0, {"position": 0}, None, str(tmp_path), 1 << 20, 60.0)
    restorer = Restorer()
    with pytest.raises(ChangelogError, match="The record at offset 3000 of 'log', partition 0, is damaged"):
        list(restorer.run(job))
    # It may come back.
    Path(changelog.path(TP)).parent.rename(tmp_path / "away")
    with pytest.raises(OSError, match="is gone"):
        list(restorer.run(job))
    restorer.close()
