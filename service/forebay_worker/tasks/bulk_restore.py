"""Bulk restore: brings replicas that are far behind forward in separate processes.

The serving process only ingests the sorted files they make, each together with its offset, in the applier's
thread. A process that is killed or fails costs a retry from the store's committed offset, never a gap: a file
is ingested only if it begins where the store is.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

from forebay.clock import boot_ms
from forebay.linux import module_command, module_environment
from forebay.state_store import CommittedOffset, StoreCorrupted
from forebay.task_ids import TopicPartition
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.tasks.replica import Replica
from forebay_worker.tasks.restoration import Restoration
from forebay_worker.tasks.restore_process import RestoreJob, RestoreReport

log = logging.getLogger(__name__)
MAX_BYTES_IN_MEMORY = 96 << 20
"""Bytes that one restore process collects before it writes a file."""
_PATIENCE_S = 10.0
_STOP_CHECK_S = 0.1
_STOP_PATIENCE_S = 5.0
_SILENCE_MS = 60_000.0
"""A process that does something says so every few seconds."""


def ingest(restoration: Restoration, report: RestoreReport) -> bool:
    """Ingest a file if it begins at the store's offset and the log is the store's; returns whether the job may
    continue."""
    replica = restoration.replica
    assert report.path is not None
    path = Path(report.path)
    tp = replica.topic_partition
    store = replica.view.store
    committed = store.committed_offset(tp) or CommittedOffset(0)
    fits = not restoration.cancelled and report.position_from == committed.position
    if not fits or replica.view.log not in (None, report.log):
        path.unlink(missing_ok=True)
        return False
    assert isinstance(store, RocksDbStore)
    offset = report.offset
    if replica.view.log is None:
        replica.learn_log(report.log)
        store.commit({})
    progress = replica.view.progress
    replica.publish(
        progress=progress._replace(applying_to=max(committed.content_before, offset.content_before)),
        filling=replica.view.filling or bool(offset.filling),
        epochs=offset.epochs,
        proof=offset.proof if offset.pending_end is None else None,
        unproven=offset.unproven_by_any,
    )
    store.ingest(path, tp, offset)
    replica.publish(
        progress=progress._replace(
            position=offset.position,
            applying_to=offset.content_before,
            consistent_position=offset.consistent_position,
        ),
        filling=bool(offset.filling),
        unproven=offset.unproven_by_any,
        beat_epoch_ms=offset.beat_epoch_ms,
        stream_time_ms=offset.stream_time_ms,
    )
    replica.failure = replica.storage_fault = None
    replica.doubt_keys(tuple(map(bytes.fromhex, offset.misplaced_keys)))
    replica.records.applied += report.records
    replica.records.skipped += report.skipped
    replica.note_ahead(report.ahead)
    restoration.records += report.records
    restoration.fruitless = restoration.refused = 0
    log.info(
        "%s: %d records restored, %.0f a second; seconds left: %s",
        tp,
        restoration.records,
        restoration.records_per_second,
        restoration.seconds_left,
    )
    return True


class BulkRestore:
    """A few restore processes and the queue of replicas that wait for one.

    ``in_applier(function)`` runs a function in the applier's thread.
    ``storage_fault(error)`` describes the machine's refusal behind an error, None if there is none.
    ``copy(restoration, path, stopped)`` copies another worker's store or a snapshot to a path instead, if there is
    one, and returns what it copied. Called in the applier's thread are ``on_copied(restoration, path, source)``,
    ``on_ended(restoration)`` for a restore that came to its end or was given up, and
    ``on_damaged(replica, error)`` for a store that is found damaged.
    """

    def __init__(
        self,
        changelog_url: str,
        processes: int,
        scratch: Path,
        in_applier: Callable[[Callable[[], None]], None],
        storage_fault: Callable[[Exception], str | None],
        copy: Callable[[Restoration, Path, Callable[[], bool]], str | None],
        on_copied: Callable[[Restoration, Path, str], None],
        on_ended: Callable[[Restoration], None],
        on_damaged: Callable[[Replica, StoreCorrupted], None],
        schema_registry: str | None = None,
        headed: Collection[str] = (),
    ) -> None:
        self._headed = sorted(headed)
        self._schema_registry = schema_registry
        self._copy = copy
        self._on_copied = on_copied
        self._on_ended = on_ended
        self._on_damaged = on_damaged
        self._changelog_url = changelog_url
        self._processes = processes
        self._scratch = scratch
        self._in_applier = in_applier
        self._storage_fault = storage_fault
        self._numbers = itertools.count(1)
        self._waiting: SimpleQueue[Restoration | None] = SimpleQueue()
        """What threads take up, None for each at the end."""
        self._stopping = threading.Event()
        self._children: list[subprocess.Popen[str]] = []
        self._awaited_since: dict[subprocess.Popen[str], float] = {}
        """Since when nothing was heard of each process that a thread listens to, in milliseconds since boot."""
        self._threads: list[threading.Thread] = []
        self.restorations: dict[TopicPartition, Restoration] = {}
        """Those under way or waiting."""

    def delete_leftovers(self) -> None:
        """Delete what a killed worker's processes left: it takes up space that stores need to be opened."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    def kill_unresponsive(self) -> None:
        """Kill processes that hang; another attempt is made without them."""
        # A machine that was suspended has stopped its processes, too.
        now_s = time.monotonic()
        for child, since_s in list(self._awaited_since.items()):
            if 1000 * (now_s - since_s) >= _SILENCE_MS:
                log.error("a restore process said nothing for %.0f s and is killed", _SILENCE_MS / 1000)
                child.kill()

    def submit(self, replica: Replica, *, may_copy: bool = False) -> None:
        """Queue a replica; in the applier's thread, where it must not be followed meanwhile.

        If it ``may_copy``, others are asked for their store first. Raises ``RuntimeError`` if no thread can be
        started.
        """
        if len(self._threads) < self._processes:
            self._start_thread()
        restoration = Restoration(replica, next(self._numbers), boot_ms(), may_copy=may_copy)
        self.restorations[replica.topic_partition] = restoration
        self._waiting.put(restoration)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="forebay-restore", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The machine has no thread left; those that there are have the more to do.
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def restoring(self, replica: Replica) -> Restoration | None:
        """The restoration of a replica, None if there is none."""
        found = self.restorations.get(replica.topic_partition)
        return found if found is not None and found.replica is replica else None

    def cancel(self, replica: Replica) -> None:
        """Drop a replica; in the applier's thread. Later files for it are discarded."""
        restoration = self.restoring(replica)
        if restoration is not None:
            restoration.cancelled = True
            del self.restorations[replica.topic_partition]

    def stop(self) -> None:
        """End every restore process and delete what they left."""
        self._stopping.set()
        for child in list(self._children):
            child.kill()
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            # One that waits for another worker's answer ends by itself.
            thread.join(_STOP_PATIENCE_S)
        self.delete_leftovers()

    def _run(self) -> None:
        child: subprocess.Popen[str] | None = None
        while (restoration := self._waiting.get()) is not None:
            if self._stopping.is_set():
                break
            if restoration.cancelled:
                continue
            restoration.begun_boot_ms = boot_ms()
            restoration.begun_position = restoration.replica.view.progress.position
            if self._is_copied(restoration):
                continue
            if child is not None and child.poll() is not None:
                self._end(child)
                child = None
            restored = False
            try:
                child = child or self._spawn()
            except Exception as error:
                restoration.fruitless += 1
                self._fail(restoration, f"no restore process could be started: {error}")
            else:
                restored = self._restored(child, restoration)
                if not restored:
                    # Anything it may still report belongs to a finished job, and so does what it wrote ahead.
                    self._end(child)
                    child = None
                    self._delete_files(restoration)
            if restored or restoration.given_up:
                self._in_applier(partial(self._finish, restoration))
            elif not self._stopping.wait(restoration.retry_s):
                self._waiting.put(restoration)
        if child is not None:
            self._end(child)

    def _is_copied(self, restoration: Restoration) -> bool:
        """Whether another worker has given its store; if not, it is not asked again."""
        if not restoration.may_copy:
            return False
        restoration.may_copy = False
        path = self._scratch / f"{restoration.number}-copy"
        try:
            source = self._copy(restoration, path, lambda: self._stopping.is_set() or restoration.cancelled)
        except Exception as error:
            found = self._storage_fault(error) or error
            log.error("%s could not be copied, so its log is read: %s", _name(restoration), found)
            source = None
        if source is None:
            restoration.copy = None
            shutil.rmtree(path, ignore_errors=True)
            return False
        self._in_applier(partial(self._on_copied, restoration, path, source))
        return True

    def _delete_files(self, restoration: Restoration) -> None:
        for path in self._scratch.glob(f"{restoration.number}-*"):
            with contextlib.suppress(OSError):
                path.unlink()

    def _end(self, child: subprocess.Popen[str]) -> None:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._children.remove(child)

    def _fail(self, restoration: Restoration, reason: str, storage_fault: str | None = None) -> None:
        log.error("restoring %s: %s; it will be retried", _name(restoration), reason)
        self._in_applier(partial(self._note_failure, restoration, reason, storage_fault))

    def _restored(self, child: subprocess.Popen[str], restoration: Restoration) -> bool:
        try:
            return self._restore(child, restoration)
        except Exception:
            # Such as a store that was closed meanwhile: the thread has others to restore.
            log.exception("restoring %s failed; it is tried again", _name(restoration))
            return False

    def _restore(self, child: subprocess.Popen[str], restoration: Restoration) -> bool:
        """Run one job; whether it came to its end."""
        assert child.stdin is not None
        try:
            child.stdin.write(self._job(restoration).line())
            child.stdin.flush()
            while line := self._next_line(child):
                report = RestoreReport(**json.loads(line))
                if report.error is not None:
                    restoration.fruitless += report.lasting
                    restoration.refused += report.refused
                    self._fail(restoration, report.error, report.error if report.refused else None)
                    return False
                if report.alive:
                    continue
                if report.path is None:
                    return True
                if not self._ingest_in_applier(restoration, report):
                    return False
        except BrokenPipeError:
            pass
        except (OSError, ValueError) as error:
            log.warning("restoring %s was interrupted: %s", _name(restoration), error)
            return False
        if not self._stopping.is_set():
            restoration.fruitless += 1
            self._fail(restoration, "its restore process ended before it was done")
        return False

    def _next_line(self, child: subprocess.Popen[str]) -> str:
        """The next line that a process says, empty if it has ended."""
        assert child.stdout is not None
        self._awaited_since[child] = time.monotonic()
        try:
            return child.stdout.readline()
        finally:
            del self._awaited_since[child]

    def _ingest_in_applier(self, restoration: Restoration, report: RestoreReport) -> bool:
        """Pass a file to the applier's thread and wait, so that at most one file waits per process."""
        settled: SimpleQueue[bool] = SimpleQueue()
        self._in_applier(partial(self._take_file, restoration, report, settled.put))
        while not self._stopping.is_set():
            with contextlib.suppress(Empty):
                return settled.get(timeout=_STOP_CHECK_S)
        return False

    def _take_file(self, restoration: Restoration, report: RestoreReport, settled: Callable[[bool], None]) -> None:
        """Ingest a file; ``settled`` is told whether its job may go on."""
        fits = False
        try:
            fits = ingest(restoration, report)
        except StoreCorrupted as corrupted:
            self._on_damaged(restoration.replica, corrupted)
        except Exception as error:
            self._refuse(restoration, error)
        finally:
            settled(fits)

    def _note_failure(self, restoration: Restoration, reason: str, storage_fault: str | None) -> None:
        if not restoration.cancelled:
            replica = restoration.replica
            replica.failure, replica.storage_fault = reason, storage_fault

    def _finish(self, restoration: Restoration) -> None:
        if not restoration.cancelled:
            del self.restorations[restoration.replica.topic_partition]
            self._on_ended(restoration)

    def _refuse(self, restoration: Restoration, error: Exception) -> None:
        """Note why a file could not be ingested."""
        if restoration.cancelled:
            return
        replica = restoration.replica
        found = replica.storage_fault = self._storage_fault(error)
        restoration.refused += found is not None
        replica.failure = found or str(error) or repr(error)
        log.error("%s: a file could not be ingested; it will be retried. %s", _name(restoration), replica.failure)

    def _job(self, restoration: Restoration) -> RestoreJob:
        replica = restoration.replica
        committed = replica.view.store.committed_offset(replica.topic_partition) or CommittedOffset(0)
        self._scratch.mkdir(parents=True, exist_ok=True)
        return RestoreJob(
            restoration.number,
            self._changelog_url,
            replica.spec.document(),
            replica.task.partition,
            committed.document(),
            replica.view.log,
            str(self._scratch),
            MAX_BYTES_IN_MEMORY,
            _PATIENCE_S,
            self._schema_registry,
            self._headed,
        )

    def _spawn(self) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            module_command("forebay_worker.tasks.restore_process"),
            env=module_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._children.append(child)
        if self._stopping.is_set():
            # Those that were there have been killed.
            child.kill()
        return child


def _name(restoration: Restoration) -> str:
    return str(restoration.replica.topic_partition)
