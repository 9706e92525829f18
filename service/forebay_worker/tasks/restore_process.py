"""A restore process: folds a partition's log into sorted files, outside the serving process.

Reads jobs from standard input, one JSON object per line, and reports its files on standard output likewise. It
holds no lock, writes only into its scratch directory, and ends with its standard input, so it cannot outlive the
worker.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from rocksdict import Options, SstFileWriter

from forebay.clock import epoch_ms
from forebay.errors import ChangelogError
from forebay.linux import end_with_parent
from forebay.state_store import CommittedOffset
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog import Batch, Consumer, Wake, open_changelog
from forebay_changelog.kafka.schemas import know_schemas
from forebay_worker.state.reserved_records import OFFSET_KEY, offsets_to_json
from forebay_worker.state.rocksdb_memory import OF_ANY_STORE, StoreOptions, block_options
from forebay_worker.state.storage_faults import storage_fault
from forebay_worker.tasks.folding import FoldedBatch, advance, fold_batch, misplaced_keys
from forebay_worker.tasks.log_continuity import continuity_fault

SCHEMAS_DIRECTORY = ".schemas"
"""Beside the scratch directory: where a worker and its restore processes keep the schemas that they fetched."""
_ENOUGH_TO_JUDGE = 1_000
_FEWEST_PARTS = 64
_MAX_PARTS = 16_384

Change = tuple[bytes, bytes | None]
"""A stored key and its value, None to delete."""
_KEYS_PER_SYNC = 20_000
RECORDS_PER_POLL = 2_000
"""Records folded at once should fit the processor's cache: with 50,000 each took a third longer."""
_NICENESS = 10
_BYTES_BESIDE = 100
"""About what a record takes in memory beside its key and value."""
_PAUSE_S = 0.005
_PULSE_S = 5.0
_NEVER_SET = Wake()


class SortedRun:
    """The last change of each key, in the order of the keys.

    A dictionary of a million entries, and a sort of them, wait for main memory at nearly every step. So entries
    are parted by the first bytes of their keys, which keeps the order, into parts that fit the processor's cache.
    The first keys show how many bytes that takes; if later ones make too many parts of it, fewer bytes do.
    """

    def __init__(self) -> None:
        self._prefix_length = 0
        self._judged = False
        self._parts: defaultdict[bytes, dict[bytes, bytes | None]] = defaultdict(dict)

    def add(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Take later changes."""
        parts, length = self._parts, self._prefix_length
        for key, value in changes.items():
            parts[key[:length]][key] = value
        if not self._judged and len(parts[b""]) >= _ENOUGH_TO_JUDGE:
            self._judged = True
            self._part_by(_shortest_prefix(parts[b""]))
        elif len(parts) > _MAX_PARTS:
            self._part_by(_longest_prefix(parts, length))

    def in_order(self) -> Iterator[list[Change]]:
        """All changes, part by part in the order of their keys; what was given is dropped."""
        for prefix in sorted(self._parts):
            yield sorted(self._parts.pop(prefix).items(), key=itemgetter(0))

    def _part_by(self, length: int) -> None:
        old, self._parts, self._prefix_length = self._parts, defaultdict(dict), length
        for part in old.values():
            for key, value in part.items():
                self._parts[key[:length]][key] = value


def _shortest_prefix(keys: Mapping[bytes, object]) -> int:
    """The fewest bytes by which keys fall into enough parts: of so many keys, their whole length would do."""
    return next(length for length in itertools.count(1) if len({key[:length] for key in keys}) >= _FEWEST_PARTS)


def _longest_prefix(prefixes: Mapping[bytes, object], length: int) -> int:
    """The most bytes, fewer than so far, that make no more than half of the parts that there may be."""
    lengths = range(length - 1, 0, -1)
    return next((n for n in lengths if len({prefix[:n] for prefix in prefixes}) <= _MAX_PARTS // 2), 0)


def write_sst(
    path: Path,
    changes: Iterable[Sequence[tuple[bytes, bytes | None]]],
    topic_partition: TopicPartition,
    committed: CommittedOffset,
    store: StoreOptions = OF_ANY_STORE,
) -> None:
    """Write changes (None deletes), part by part in the order of their keys, and the resulting offset as one file
    to ingest."""
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(block_options(store))
    store.compress(options)
    writer = SstFileWriter(options=options)
    writer.open(str(path))
    writer[OFFSET_KEY] = offsets_to_json({topic_partition: committed})
    not_synced = 0
    with path.open("rb") as file:
        for part in changes:
            for key, value in part:
                if value is None:
                    del writer[key]
                else:
                    writer[key] = value
            not_synced += len(part)
            # Done all at once at the end, it would hold up other syncs on this disk.
            if not_synced >= _KEYS_PER_SYNC:
                os.fdatasync(file.fileno())
                not_synced = 0
    writer.finish()


@dataclass(frozen=True)
class RestoreJob:
    """Fold one partition from a committed offset to the end that the log has when the job starts.

    ``store`` and ``committed`` are the documents of its specification and of that offset. ``log`` is the identity
    of the store's log, None if unknown; ``max_bytes`` bounds what is kept in memory before a file is written. If
    the log delivers nothing for ``patience_s``, the job is abandoned. ``schema_registry`` is the URL of what has
    the schemas of values.
    """

    job: int
    changelog: str
    store: dict[str, Any]
    partition: int
    committed: dict[str, Any]
    log: str | None
    scratch: str
    max_bytes: int
    patience_s: float
    schema_registry: str | None = None
    headed: Sequence[str] = ()
    """All topics whose records are kept with their headers."""

    def line(self) -> str:
        """The job as one line."""
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True)
class RestoreReport:
    """A restore process's report: a file covering ``[position_from, committed)``, or the end of a job.

    ``error`` says why a job was abandoned, ``lasting`` whether another attempt is likely to end the same way, and
    ``refused`` whether the machine refused it. ``alive`` says nothing but that the process is at work.
    """

    job: int
    path: str | None = None
    position_from: int = 0
    committed: dict[str, Any] | None = None
    records: int = 0
    log: str = ""
    error: str | None = None
    lasting: bool = False
    refused: bool = False
    alive: bool = False
    skipped: int = 0
    ahead: int = 0

    @property
    def offset(self) -> CommittedOffset:
        """The offset in the file."""
        assert self.committed is not None
        return CommittedOffset.from_document(self.committed)


class Restorer:
    """Does jobs one after the other, with one consumer: connecting takes longer than many a partition."""

    def __init__(self) -> None:
        self._consumer: Consumer | None = None

    def run(self, job: RestoreJob) -> Iterator[RestoreReport]:
        """The files of a job, in offset order, then its end; ends early if the log cannot be followed."""
        spec = StoreSpec.from_document(job.store)
        tp = TopicPartition(spec.topic, job.partition)
        if self._consumer is None:
            schemas = Path(job.scratch).with_name(SCHEMAS_DIRECTORY)
            know_schemas(job.schema_registry, schemas, wait_s=job.patience_s)
            self._consumer = open_changelog(job.changelog).consumer(replay=True, headed=job.headed)
        consumer = self._consumer
        committed = CommittedOffset.from_document(job.committed)
        consumer.assign(tp, committed.position, committed.proof)
        try:
            yield from _fold_files(job, spec, tp, consumer)
        finally:
            consumer.unassign(tp)
        yield RestoreReport(job.job)

    def close(self) -> None:
        """Close the connections."""
        if self._consumer is not None:
            self._consumer.close()


class _FileInProgress:
    """What is folded of a log for the next file, from an offset on."""

    def __init__(self, position_from: int) -> None:
        self._position_from = position_from
        self._run = SortedRun()
        self._records = self._skipped = self._ahead = 0
        self.held_bytes = 0

    def add(self, folded: FoldedBatch) -> None:
        """Take the outcome of the next batch."""
        changes = folded.fold.changes
        self._run.add(changes)
        self._records += len(folded.batch.records)
        self._skipped += folded.skipped
        self._ahead += folded.fold.ahead
        self.held_bytes += _size_of(changes)

    def write(
        self, path: Path, job: int, tp: TopicPartition, committed: CommittedOffset, log: str, store: StoreOptions
    ) -> RestoreReport:
        """Write the file; returns the report of it."""
        # Never overwritten: a store may have ingested the file of an earlier attempt under this name.
        path.unlink(missing_ok=True)
        try:
            write_sst(path, self._run.in_order(), tp, committed, store)
        except BaseException:
            # What there is of it takes up space that others need.
            path.unlink(missing_ok=True)
            raise
        return RestoreReport(
            job,
            str(path),
            self._position_from,
            committed.document(),
            self._records,
            log,
            skipped=self._skipped,
            ahead=self._ahead,
        )


class _FollowedLog:
    """Batches of one partition, until none brings anything new for so long."""

    def __init__(self, consumer: Consumer, tp: TopicPartition, patience_s: float) -> None:
        self._consumer = consumer
        self._tp = tp
        self._patience_s = patience_s
        self.wait_anew()

    def wait_anew(self) -> None:
        """Count the patience from now on."""
        self._deadline = time.monotonic() + self._patience_s

    def next_after(self, position: int) -> Batch:
        """The next batch; raises ``ChangelogError`` if the log cannot be read, and ``OSError`` if that may pass or
        nothing arrives for a while, not even an end."""
        batch = self._next()
        failure = self._consumer.failures().get(self._tp)
        if batch.position > position:
            self.wait_anew()
        elif failure is not None and failure.lasting:
            raise ChangelogError(failure.reason)
        elif time.monotonic() > self._deadline:
            raise ChangelogError(f"The log {self._tp} answers, but nothing after offset {position} is delivered.")
        return batch

    def _next(self) -> Batch:
        deadline = time.monotonic() + self._patience_s
        while (batch := next(iter(self._consumer.poll(RECORDS_PER_POLL)), None)) is None:
            failure = self._consumer.failures().get(self._tp)
            if failure is not None:
                raise (ChangelogError if failure.lasting else OSError)(failure.reason)
            if time.monotonic() > deadline:
                raise OSError(f"the log {self._tp} cannot be read")
            self._consumer.wait(_NEVER_SET, _PAUSE_S)
        return batch


def _fold_files(
    job: RestoreJob, spec: StoreSpec, tp: TopicPartition, consumer: Consumer
) -> Iterator[RestoreReport]:
    """Fold the log into files, up to the end that it has at first, a bad record, or what cannot follow."""
    committed = CommittedOffset.from_document(job.committed)
    log, file = _FollowedLog(consumer, tp, job.patience_s), _FileInProgress(committed.position)
    target, numbers = None, itertools.count()
    pulse_due = time.monotonic() + _PULSE_S
    while target is None or committed.position < target:
        batch = log.next_after(committed.position)
        if continuity_fault(spec, job.log, committed, committed.end_reached_epoch_ms, batch) is not None:
            # The applier takes over and finds the same.
            return
        if time.monotonic() >= pulse_due:
            pulse_due = time.monotonic() + _PULSE_S
            yield RestoreReport(job.job, alive=True)
        folded = fold_batch(spec, committed, batch)
        if folded.stopped_by is not None:
            # The applier takes over there, and reports it.
            target = folded.batch.position
        elif target is None:
            target = batch.end.offset
        file.add(folded)
        committed = _advanced(spec, job.partition, committed, folded)
        if file.held_bytes >= job.max_bytes or committed.position >= target:
            path = Path(job.scratch) / f"{job.job}-{next(numbers)}.sst"
            yield file.write(path, job.job, tp, committed, batch.identity, StoreOptions.of(spec))
            file = _FileInProgress(committed.position)
            # Writing, and waiting until it is ingested, may have taken any time.
            log.wait_anew()


def _advanced(spec: StoreSpec, partition: int, before: CommittedOffset, folded: FoldedBatch) -> CommittedOffset:
    """The offset after a batch."""
    known = [bytes.fromhex(key) for key in before.misplaced_keys]
    found = misplaced_keys(spec, partition, folded.batch.records, known)
    before = before._replace(misplaced_keys=tuple(key.hex() for key in found))
    return advance(before, folded.batch, folded.fold, before.last_caught_up_epoch_ms, epoch_ms())


def _size_of(changes: Mapping[bytes, bytes | None]) -> int:
    """About how many bytes of memory changes take."""
    return sum(map(len, changes)) + sum(map(len, filter(None, changes.values()))) + _BYTES_BESIDE * len(changes)


def main() -> None:
    """Do jobs until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    os.nice(_NICENESS)
    # Nothing here creates cycles, and searching millions of records for some takes a while.
    gc.disable()
    restorer = Restorer()
    for line in sys.stdin:
        job = RestoreJob(**json.loads(line))
        try:
            for report in restorer.run(job):
                _report(report)
        except Exception as error:
            refused = storage_fault(error, Path(job.scratch).parent)
            # Brokers come back, and so does room on a disk.
            lasting = refused is None and not isinstance(error, OSError)
            reason = refused or f"{type(error).__name__}: {error}"
            _report(RestoreReport(job.job, error=reason, lasting=lasting, refused=refused is not None))
    restorer.close()


def _report(report: RestoreReport) -> None:
    sys.stdout.write(json.dumps(asdict(report)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
