"""Code for Spark's Python workers: appends a batch's records to a SQLite changelog.

Imports only the standard library, pyarrow and modules that do the same: it is pickled by value, so that executors
do not need forebay.
"""

from __future__ import annotations

import itertools
import socket
import sqlite3
import sys
import zipimport
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from forebay.record_orders import split_order
from forebay_changelog.sqlite.batches import append_batch
from forebay_changelog.sqlite.log_file import PATIENCE_S, Proof, WriteRefused, check_directory, partition_path

Batches = Iterator["pa.RecordBatch"]
Row = tuple[bytes, bytes | None, int]
"""Key, value and timestamp in epoch milliseconds."""

END = (1 << 31) - 1
"""The partition of the row that follows a task's last one. If a task is cancelled, Spark ends its rows between two
Arrow batches, as if there were no more: without this row, what had come of them would be committed."""


@dataclass(frozen=True)
class BatchId:
    """The batch and query that write, and the writer's name.

    ``order`` are the columns by which a key's rows come one after another, the latest last; () if nothing orders
    them. ``is_distinct`` if the query's plan shows that a batch has one row of a key. ``identities`` are
    those of the partitions' logs that the query goes on in; None if any will do.
    """

    query_id: str
    number: int
    writer: str
    order: tuple[str, ...]
    is_distinct: bool = False
    identities: Mapping[int, str] | None = None


@dataclass(frozen=True)
class Target:
    """A batch's destination: one topic of a SQLite changelog."""

    directory: str
    directory_id: str
    driver_host: str
    topic: str
    batch: BatchId
    timestamp_ms: int | None
    """Of all rows; None if each has its own, as versions do."""
    latest: bool = False
    """Whether the keys end with an order."""
    dry_run: bool = False
    """Whether the rows are compared with those of an earlier attempt, and nothing is kept."""
    proofs: Mapping[int, Proof] = field(default_factory=dict)
    """By partition, where the writer's last heartbeat is."""


def append_rows(target: Target) -> Callable[[Batches], Batches]:
    """A ``mapInArrow`` function: appends records and yields the partitions that it wrote.

    They come partition by partition, with a key's rows together, and ``END`` after the last one. Each
    partition's rows and marker commit in one transaction. Raises ``WriteRefused``.
    """

    def run(batches: Batches) -> Batches:
        _forget_archives()
        for partition, pieces in itertools.groupby(_pieces(batches), key=lambda piece: piece[0]):
            checked = _checked((batch for _, batch in pieces), target)
            yield append_partition(target, partition, itertools.chain.from_iterable(map(rows, checked)))

    def rows(batch: pa.RecordBatch) -> Iterable[Row]:
        times: Iterable[int] = itertools.repeat(target.timestamp_ms or 0, len(batch))
        if target.timestamp_ms is None:
            times = batch.column("timestamp_ms").to_pylist()
        return zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), times, strict=True)

    return run


def append_partition(target: Target, partition: int, rows: Iterable[Row]) -> pa.RecordBatch:
    """Append a partition's rows and their marker in one transaction, as ``append_batch`` does.

    Returns a row with the partition. Raises ``WriteRefused``.
    """
    check_directory(target.directory, target.directory_id, target.driver_host, socket.gethostname())
    path, batch = partition_path(target.directory, target.topic, partition), target.batch
    try:
        append_batch(
            path,
            rows,
            writer=batch.writer,
            query_id=batch.query_id,
            batch_id=batch.number,
            write_name=batch.writer,
            timed=target.timestamp_ms is None,
            dry_run=target.dry_run,
            identity=(batch.identities or {}).get(partition),
            proof=target.proofs.get(partition),
        )
    except sqlite3.Error as error:
        raise WriteRefused(
            f"The log {path} cannot be written: {error}. Is its disk full or read-only, the file gone, or "
            f"another process writing to it for {PATIENCE_S} seconds? Mend that, and start the query again."
        ) from None
    return pa.RecordBatch.from_pydict({"partition": pa.array([partition], pa.int32())})


def _forget_archives() -> None:
    """Spare this process's next task from reading Spark's own zip archives.

    A Python worker of Spark invalidates the import caches at the start of each task, and up to Python 3.11 a zip
    importer then reads its archive's directory at once: 0.3 s a task. A later import from the archive gets a new
    importer.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]


def _pieces(batches: Batches) -> Iterator[tuple[int, pa.RecordBatch]]:
    """All rows, those of one partition at a time; raises ``EOFError`` after the last one if more should follow."""
    partition = END
    for batch in batches:
        runs, start = pc.run_end_encode(batch.column("partition")), 0
        for partition, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            if partition != END:
                yield partition, batch.slice(start, end - start)
            start = end
    if partition != END:
        raise EOFError("The task was cancelled; nothing of what it wrote is kept.")


def _checked(batches: Iterable[pa.RecordBatch], target: Target) -> Iterator[pa.RecordBatch]:
    """A partition's rows: several of one key are refused with ``WriteRefused``, unless ordered.

    Equal rows of one order are no repetition, and written once: sources deliver again.
    """
    before: pa.RecordBatch | None = None
    for batch in batches:
        if target.batch.order:
            yield batch
            continue
        keys, values = (_chained(before, batch, name) for name in ("key", "value"))
        repeats = pc.equal(keys[1:], keys[:-1])
        before = batch.slice(len(batch) - 1)
        if not pc.any(repeats).as_py():
            yield batch
            continue
        equal = pc.fill_null(pc.equal(values[1:], values[:-1]), False)
        equal = pc.or_(equal, pc.and_(pc.is_null(values[1:]), pc.is_null(values[:-1])))
        at = pc.index(pc.and_(repeats, pc.invert(equal)) if target.latest else repeats, True).as_py()
        if at >= 0:
            raise several_rows(keys[at].as_py(), target.batch.number, target.batch.writer, target.latest)
        is_new = pc.invert(repeats)
        # The first of all rows has none before it.
        yield batch.filter(is_new if len(is_new) == len(batch) else pa.concat_arrays([pa.array([True]), is_new]))


def _chained(before: pa.RecordBatch | None, batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    return column if before is None else pa.concat_arrays([before.column(name), column])


def several_rows(key: bytes, batch_id: int, write_name: str, latest: bool) -> WriteRefused:
    """The refusal of a batch with rows of one key that nothing orders."""
    same = ""
    if latest:
        key, order = split_order(key)
        same = f" with the order {order}"
    return WriteRefused(
        f"Batch {batch_id} has more than one row for the key {key!r} of {write_name!r}{same}, "
        "and nothing determines which is the latest. Give the sink order_by=, or aggregate by the key."
    )
