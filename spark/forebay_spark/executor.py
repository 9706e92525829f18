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
from operator import itemgetter

import pyarrow as pa

from forebay.record_orders import split_order
from forebay_changelog.sqlite.batches import append_batch
from forebay_changelog.sqlite.log_file import PATIENCE_S, Proof, WriteRefused, check_directory, partition_path

Batches = Iterator["pa.RecordBatch"]
Row = tuple[bytes, bytes | None, int]
"""Key, value and timestamp in epoch milliseconds."""
PlacedRow = tuple[int, bytes, bytes | None, int]
"""The same after its partition."""

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
        for partition, rows in itertools.groupby(_placed(batches, target), key=itemgetter(0)):
            yield append_partition(target, partition, map(itemgetter(1, 2, 3), _checked(rows, target)))

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


def _placed(batches: Batches, target: Target) -> Iterator[PlacedRow]:
    """All rows; raises ``EOFError`` after the last one if more should follow."""
    partition = END
    for batch in batches:
        times: Iterable[int] = itertools.repeat(target.timestamp_ms or 0)
        if target.timestamp_ms is None:
            times = batch.column("timestamp_ms").to_pylist()
        columns = (batch.column(name).to_pylist() for name in ("partition", "key", "value"))
        for row in zip(*columns, times, strict=False):
            partition = row[0]
            if partition != END:
                yield row
    if partition != END:
        raise EOFError("The task was cancelled; nothing of what it wrote is kept.")


def _checked(rows: Iterable[PlacedRow], target: Target) -> Iterator[PlacedRow]:
    """A partition's rows: several of one key are refused with ``WriteRefused``, unless ordered.

    Equal rows of one order are no repetition, and written once: sources deliver again.
    """
    key = value = None
    for row in rows:
        if row[1] != key or target.batch.order:
            yield row
        elif not target.latest or row[2] != value:
            raise several_rows(row[1], target.batch.number, target.batch.writer, target.latest)
        _, key, value, _ = row


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
