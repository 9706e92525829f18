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
import math
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forebay.clock import boot_ms
from forebay.state_store import CommittedOffset, StoreCorrupted
from forebay.task_ids import TopicPartition
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.tasks.replica import Replica
from forebay_worker.tasks.restore_process import RestoreJob, RestoreReport

log = logging.getLogger(__name__)

MOST_BYTES_IN_MEMORY = 96 << 20
"""Bytes that one restore process collects before it writes a file."""
_PATIENCE_S = 10.0
_RETRY_S = 1.0
_MOST_DOUBLINGS = 4
_MOST_ATTEMPTS = 5
_SILENCE_MS = 60_000.0
"""A process that does something says so every few seconds."""


@dataclass
class Restoration:
    """One replica in progress: how much is done, and how fast."""

    replica: Replica
    number: int
    begun_boot_ms: float
    records: int = 0
    cancelled: bool = False
    begun_position: int = 0
    fruitless: int = 0
    """Attempts, one after the other, whose processes ended or failed for good without having done anything, or
    could not be started."""
    refused: int = 0
    """Attempts, one after the other, that the machine refused."""
    storage_fault: str | None = None
    """Why it refused the last one."""

    @property
    def given_up(self) -> bool:
        """Whether its processes failed too often, as where memory is short: it needs another way."""
        return self.fruitless >= _MOST_ATTEMPTS

    @property
    def retry_s(self) -> float:
        """The pause before the next attempt: one that takes up the last space would leave none to others."""
        return _RETRY_S * 2.0 ** min(self.refused, _MOST_DOUBLINGS)

    @property
    def records_per_second(self) -> float:
        """Records folded a second since the beginning."""
        return self.records / max(0.001, (boot_ms() - self.begun_boot_ms) / 1000)

    @property
    def seconds_left(self) -> int | None:
        """Seconds until the end of the log, at the pace so far; None before the first file, or if no end is known.

        Based on offsets: a compacted log has fewer records left than that.
        """
        progress = self.replica.progress
        done = progress.position - self.begun_position
        if done <= 0 or progress.end_offset is None:
            return None
        took_s = (boot_ms() - self.begun_boot_ms) / 1000
        return math.ceil(max(0, progress.end_offset - progress.position) * took_s / done)


class BulkRestore:
    """A few restore processes and the queue of replicas that wait for one.

    ``call`` runs a function in the applier's thread. Called there are ``done(restoration)`` at a replica's end,
    also if it is given up because its processes keep failing, and ``lost(replica, reason)`` if its store is.
    ``storage_fault(error)`` describes the machine's refusal behind an error, None if there is none.
    """

    def __init__(
        self,
        changelog_url: str,
        processes: int,
        scratch: Path,
        call: Callable[[Callable[[], None]], object],
        done: Callable[[Restoration], None],
        lost: Callable[[Replica, str], None],
        storage_fault: Callable[[Exception], str | None],
    ) -> None:
        self._changelog_url = changelog_url
        self._processes = processes
        self._scratch = scratch
        self._call = call
        self._done = done
        self._lost = lost
        self._storage_fault = storage_fault
        self._numbers = itertools.count(1)
        self._waiting: deque[Restoration] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._children: list[subprocess.Popen[str]] = []
        self._awaited_since: dict[subprocess.Popen[str], float] = {}
        """Since when nothing was heard of each process that a thread listens to, in milliseconds since boot."""
        self._threads: list[threading.Thread] = []
        self.restorations: dict[TopicPartition, Restoration] = {}
        """Those under way or waiting."""

    @property
    def storage_faults(self) -> list[str]:
        """What keeps files from being written or ingested."""
        return [
            found.storage_fault for found in list(self.restorations.values()) if found.storage_fault is not None
        ]

    def delete_leftovers(self) -> None:
        """Delete what a killed worker's processes left: it takes up space that stores need to be opened."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    def kill_unresponsive(self) -> None:
        """Kill processes that hang; another attempt is made without them."""
        now = boot_ms()
        for child, since in list(self._awaited_since.items()):
            if now - since >= _SILENCE_MS:
                log.error("a restore process said nothing for %.0f s and is killed", _SILENCE_MS / 1000)
                child.kill()

    def submit(self, replica: Replica) -> None:
        """Queue a replica; in the applier's thread, where it must not be followed meanwhile.

        Raises ``RuntimeError`` if no thread can be started.
        """
        restoration = Restoration(replica, next(self._numbers), boot_ms())
        with self._changed:
            if len(self._threads) < self._processes:
                self._start_thread()
            self.restorations[replica.topic_partition] = restoration
            self._waiting.append(restoration)
            self._changed.notify()

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
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            for child in self._children:
                child.kill()
        for thread in self._threads:
            thread.join()
        self.delete_leftovers()

    def _run(self) -> None:
        child: subprocess.Popen[str] | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                if self._stopping:
                    break
                restoration = self._waiting.popleft()
            if restoration.cancelled:
                continue
            restoration.begun_boot_ms = boot_ms()
            restoration.begun_position = restoration.replica.progress.position
            if child is not None and child.poll() is not None:
                self._end(child)
                child = None
            restored = False
            try:
                child = child or self._spawn()
            except Exception as error:
                restoration.fruitless += 1
                restoration.replica.failure = f"no restore process could be started: {error}"
                log.error("restoring %s: %s; it will be retried", _name(restoration), restoration.replica.failure)
            else:
                restored = self._restored(child, restoration)
                if not restored:
                    # Anything it may still report belongs to a finished job.
                    self._end(child)
                    child = None
            if restored or restoration.given_up:
                self._call(lambda done=restoration: self._finish(done))  # type: ignore[misc]
                continue
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, timeout=restoration.retry_s)
                if not restoration.cancelled:
                    self._waiting.append(restoration)
        if child is not None:
            self._end(child)

    def _end(self, child: subprocess.Popen[str]) -> None:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        with self._changed:
            self._children.remove(child)

    def _finish(self, restoration: Restoration) -> None:
        if not restoration.cancelled:
            del self.restorations[restoration.replica.topic_partition]
            self._done(restoration)

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
                    restoration.replica.failure = report.error
                    restoration.fruitless += report.lasting
                    restoration.storage_fault = report.error if report.refused else None
                    restoration.refused += report.refused
                    log.error("restoring %s failed, and will be retried: %s", _name(restoration), report.error)
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
        if not self._stopping:
            restoration.fruitless += 1
            restoration.replica.failure = "its restore process ended before it was done"
            log.warning("a restore process ended in the middle of %s; it will be retried", _name(restoration))
        return False

    def _next_line(self, child: subprocess.Popen[str]) -> str:
        """The next line that a process says, empty if it has ended."""
        assert child.stdout is not None
        self._awaited_since[child] = boot_ms()
        try:
            return child.stdout.readline()
        finally:
            del self._awaited_since[child]

    def _ingest_in_applier(self, restoration: Restoration, report: RestoreReport) -> bool:
        """Pass a file to the applier's thread and wait, so that at most one file waits per process."""
        outcome: list[bool] = []
        finished = threading.Event()

        def run() -> None:
            try:
                outcome.append(ingest(restoration, report))
            except StoreCorrupted as error:
                self._lost(restoration.replica, str(error))
            except Exception as error:
                found = restoration.storage_fault = self._storage_fault(error)
                restoration.refused += found is not None
                restoration.replica.failure = found or str(error) or repr(error)
                log.error(
                    "%s: a file could not be ingested; it will be retried. %s", _name(restoration), found or error
                )
            finally:
                finished.set()

        self._call(run)
        while not finished.wait(0.1):
            if self._stopping:
                return False
        return bool(outcome and outcome[0])

    def _job(self, restoration: Restoration) -> RestoreJob:
        replica = restoration.replica
        committed = replica.store.committed_offset(replica.topic_partition) or CommittedOffset(0)
        self._scratch.mkdir(parents=True, exist_ok=True)
        return RestoreJob(
            restoration.number,
            self._changelog_url,
            replica.spec.document(),
            replica.task.partition,
            committed.document(),
            replica.log,
            str(self._scratch),
            MOST_BYTES_IN_MEMORY,
            _PATIENCE_S,
        )

    def _spawn(self) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-m", "forebay_worker.tasks.restore_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with self._changed:
            self._children.append(child)
            if self._stopping:
                # Those that were there have been killed.
                child.kill()
        return child


def ingest(restoration: Restoration, report: RestoreReport) -> bool:
    """Ingest a file if it begins at the store's offset and the log is the store's; returns whether the job may
    continue."""
    replica = restoration.replica
    assert report.path is not None
    path = Path(report.path)
    tp = replica.topic_partition
    committed = replica.store.committed_offset(tp) or CommittedOffset(0)
    fits = not restoration.cancelled and report.position_from == committed.position
    if not fits or (replica.log is not None and replica.log != report.log):
        path.unlink(missing_ok=True)
        return False
    assert isinstance(replica.store, RocksDbStore)
    offset = report.offset
    if replica.log is None:
        replica.learn_log(report.log)
        replica.store.commit({})
    replica.progress = replica.progress._replace(applying_to=max(committed.content_before, offset.content_before))
    replica.filling |= bool(offset.filling)
    replica.store.ingest(path, tp, offset)
    replica.progress = replica.progress._replace(
        position=offset.position,
        applying_to=offset.content_before,
        consistent_position=offset.consistent_position,
    )
    replica.filling = bool(offset.filling)
    replica.stream_time_ms = offset.stream_time_ms
    replica.failure = None
    if offset.misplaced_key is not None and replica.misplaced_key is None:
        replica.refuse_misses(bytes.fromhex(offset.misplaced_key))
    replica.records_applied += report.records
    replica.records_skipped += report.skipped
    replica.records_unchecked += report.unchecked
    replica.note_ahead(report.ahead)
    restoration.records += report.records
    restoration.fruitless = restoration.refused = 0
    restoration.storage_fault = None
    log.info(
        "%s: %d records restored, %.0f a second; seconds left: %s",
        _name(restoration),
        restoration.records,
        restoration.records_per_second,
        restoration.seconds_left,
    )
    return True


def _name(restoration: Restoration) -> str:
    return str(restoration.replica.topic_partition)
