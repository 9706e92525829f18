"""Code for Spark's Python workers: partitions a batch's rows, then writes each partition.

Imports only the standard library, numpy, pyarrow and modules that do the same: it is pickled by value, so that
executors do not need forebay.
"""

from __future__ import annotations

import itertools
import socket
import sqlite3
import sys
import zipimport
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.partitioning import StreamPartitioner
from forebay_changelog.record_headers import heartbeat_key
from forebay_changelog.sqlite.batches import append_batch
from forebay_changelog.sqlite.log_file import PATIENCE_S, Proof, WriteRefused, check_directory, partition_path
from forebay_spark.batch_murmur2 import murmur2_partitions
from forebay_spark.json_keys import UnsafeInteger, json_keys
from forebay_spark.repeated_keys import several_rows

Batches = Iterator["pa.RecordBatch"]
Row = tuple[bytes, bytes | None, int]
"""Key, value and timestamp in epoch milliseconds."""

END = (1 << 31) - 1
"""The partition of the row that follows a task's last one. If a task is cancelled, Spark ends its rows between two
Arrow batches, as if there were no more: without this row, what had come of them would be committed."""


@dataclass(frozen=True)
class KeyColumns:
    """How a row's key is built: from one binary column ``key``, or as JSON of the columns of a struct ``key``.

    ``suffix`` says whether a binary column ``suffix`` (a window's times) follows the key in the changelog.
    """

    names: tuple[str, ...]
    as_json: bool
    suffix: bool
    as_text: bool
    """Whether the key is text, which must be UTF-8."""
    nulls: bool = False
    """Whether a column of a JSON key may be null."""
    latest_by: str | None = None
    """The column with the rows' orders, of which ``suffix`` then has the bytes."""
    window: str | None = None
    """The column with the rows' windows or sessions, of which ``suffix`` then has the times."""


@dataclass(frozen=True)
class Target:
    """A batch's destination: one topic of a SQLite changelog, and the writer's name."""

    directory: str
    directory_id: str
    driver_host: str
    topic: str
    writer: str
    query_id: str
    batch_id: int
    write_name: str
    ordered: bool
    versioned: bool
    latest: bool = False
    """Whether the keys end with an order."""
    dry_run: bool = False
    """Whether the rows are compared with those of an earlier attempt, and nothing is kept."""
    is_fill: bool = False
    """Whether they are those of a fill."""
    identities: Mapping[int, str] | None = None
    """Those of the partitions' logs that the query goes on in; None for any."""
    proofs: Mapping[int, Proof] = field(default_factory=dict)
    """By partition, where the writer's last heartbeat is."""


def partition_rows(
    columns: KeyColumns,
    partitions: int,
    slots: tuple[int, ...],
    partitioner: StreamPartitioner | None,
    timestamp_ms: int | None,
) -> Callable[[Batches], Batches]:
    """A ``mapInArrow`` function: what ``place_rows`` does, and adds the slot that Spark shuffles each row by.

    After all rows comes one for each slot that says so.
    """
    place = place_rows(columns, partitions, partitioner, timestamp_ms)
    by_partition = np.asarray(slots, dtype=np.int32)

    def run(batches: Batches) -> Batches:
        forget_archives()
        schema = None
        for placed in place(batches):
            slot = pa.array(by_partition[placed.column("partition").to_numpy()])
            with_slots = pa.RecordBatch.from_arrays([slot, *placed.columns], names=["slot", *placed.schema.names])
            schema = with_slots.schema
            yield with_slots
        if schema is not None:
            yield _ends(schema, sorted(set(slots)))

    return run


def place_rows(
    columns: KeyColumns, partitions: int, partitioner: StreamPartitioner | None, timestamp_ms: int | None
) -> Callable[[Batches], Batches]:
    """A function of batches: makes each row a record of the changelog, with its partition.

    ``partitioner`` is None for murmur2, which is computed on whole columns, and ``timestamp_ms`` if each row has a
    time of its own. Raises ``WriteRefused`` for null, reserved and unreadable keys.
    """

    def run(batches: Batches) -> Batches:
        nulls, timeless, without_suffix = 0, 0, 0
        for batch in batches:
            keys, null_count = _keys(batch, columns)
            nulls += null_count
            if timestamp_ms is None:
                timeless += batch.column("timestamp_ms").null_count
            if columns.suffix:
                without_suffix += batch.column("suffix").null_count
            if nulls or timeless or without_suffix:
                continue
            _refuse_reserved(keys)
            chosen = _partitions(keys, partitions, partitioner)
            times = (
                batch.column("timestamp_ms")
                if timestamp_ms is None
                else pa.array(np.full(len(batch), timestamp_ms, dtype=np.int64))
            )
            made = {
                "partition": pa.array(chosen),
                "key": _with_suffix(keys, batch.column("suffix")) if columns.suffix else keys,
                "value": batch.column("value"),
                "timestamp_ms": times,
            }
            orders = {name: batch.column(name) for name in batch.schema.names if name not in {*made, "suffix"}}
            yield pa.RecordBatch.from_pydict({**made, **orders})
        if nulls:
            shown = ", ".join(repr(name) for name in columns.names)
            raise WriteRefused(
                f"{nulls} rows of this task have a null key (column {shown}). Filter them before the sink, "
                "or choose null_keys='drop' or, for the key codec json, 'keep'."
            )
        if timeless:
            raise WriteRefused(
                f"{timeless} rows of this task have a null valid-from (the column that order_by= names). Filter "
                "them before the sink, or give them a time from which they are valid."
            )
        if without_suffix and columns.latest_by is None:
            raise WriteRefused(
                f"{without_suffix} rows of this task have a null window or session (column {columns.window!r}), "
                "or one without a start or an end. Filter them before the sink."
            )
        if without_suffix:
            raise WriteRefused(
                f"{without_suffix} rows of this task have a null order (column {columns.latest_by!r}, the store's "
                "latest_by). Filter them before the sink, or give them the lowest order there is."
            )

    return run


def write_rows(target: Target) -> Callable[[Batches], Batches]:
    """A ``mapInArrow`` function: writes rows, sorted by partition and key, and yields what it wrote.

    Each partition's rows and marker commit in one transaction; raises ``WriteRefused``.
    """

    def run(batches: Batches) -> Batches:
        forget_archives()
        for partition, group in itertools.groupby(_rows(batches), key=lambda row: row[0]):
            rows = ((key, value, timestamp_ms) for _, key, value, timestamp_ms in group)
            yield append_partition(target, partition, checked(rows, target))

    return run


def append_partition(target: Target, partition: int, rows: Iterable[Row]) -> pa.RecordBatch:
    """Append a partition's rows and their marker in one transaction, as ``append_batch`` does.

    Returns a row with the partition and the members of ``WrittenBatch``. Raises ``WriteRefused``.
    """
    check_directory(target.directory, target.directory_id, target.driver_host, socket.gethostname())
    path = partition_path(target.directory, target.topic, partition)
    try:
        written = append_batch(
            path,
            rows,
            writer=target.writer,
            query_id=target.query_id,
            batch_id=target.batch_id,
            write_name=target.write_name,
            timed=target.versioned,
            dry_run=target.dry_run,
            is_fill=target.is_fill,
            identity=(target.identities or {}).get(partition),
            proof=target.proofs.get(partition),
        )
    except sqlite3.Error as error:
        raise WriteRefused(
            f"The log {path} cannot be written: {error}. Is its disk full or read-only, the file gone, or "
            f"another process writing to it for {PATIENCE_S} seconds? Mend that, and start the query again."
        ) from None
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([partition], pa.int32()),
            "row_count": pa.array([written.row_count], pa.int64()),
            "next_offset": pa.array([written.next_offset], pa.int64()),
            "is_new": pa.array([written.is_new], pa.bool_()),
        }
    )


def forget_archives() -> None:
    """Spare this process's next task from reading Spark's own zip archives.

    A Python worker of Spark invalidates the import caches at the start of each task, and up to Python 3.11 a zip
    importer then reads its archive's directory at once: 0.3 s a task. A later import from the archive gets a new
    importer.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]


def _ends(schema: pa.Schema, slots: list[int]) -> pa.RecordBatch:
    """For each slot the row that ends its rows: it sorts after all of them."""
    columns = {"slot": slots, "partition": [END] * len(slots), "key": [b""] * len(slots)}
    arrays = [pa.array(columns.get(field.name, [None] * len(slots)), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def without_ends(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch without the rows that end a task's."""
    count = len(batch)
    while count and batch.column("partition")[count - 1].as_py() == END:
        count -= 1
    return batch.slice(0, count)


def _rows(batches: Batches) -> Iterator[tuple[int, bytes, bytes | None, int]]:
    """All rows; raises ``EOFError`` after the last one if more should follow."""
    received = ended = False
    for batch in batches:
        rows = without_ends(batch)
        received, ended = received or len(batch) > 0, ended or len(rows) < len(batch)
        columns = [rows.column(name).to_pylist() for name in ("partition", "key", "value", "timestamp_ms")]
        yield from zip(*columns, strict=True)
    if received and not ended:
        raise EOFError("The task was cancelled; nothing of what it wrote is kept.")


def checked(rows: Iterable[Row], target: Target) -> Iterator[Row]:
    """A partition's rows, sorted by key: several of one key are refused with ``WriteRefused``, unless ordered."""
    previous: tuple[bytes, bytes | None] | None = None
    for key, value, timestamp_ms in rows:
        if previous is not None and key == previous[0] and not target.ordered:
            if target.latest and value == previous[1]:
                # Sources deliver records again.
                continue
            raise several_rows(key, target.batch_id, target.write_name, target.latest)
        previous = key, value
        yield key, value, timestamp_ms


def _keys(batch: pa.RecordBatch, columns: KeyColumns) -> tuple[Any, int]:
    """The keys' plain bytes as a binary array, and the number of rows without one."""
    column = batch.column("key")
    try:
        if not columns.as_json:
            if columns.as_text:
                column.cast(pa.large_string() if pa.types.is_large_binary(column.type) else pa.string())
            return column, column.null_count
        parts = [column.field(i) for i in range(len(columns.names))]
        nulls = 0 if columns.nulls else _rows_with_null(parts)
        return json_keys(parts), nulls
    except UnsafeInteger as error:
        raise WriteRefused(
            f"The key {error.row!r} contains an integer beyond 2^53, which JSON keys cannot: cast it to string."
        ) from None
    except pa.ArrowInvalid:
        shown = ", ".join(repr(name) for name in columns.names)
        raise WriteRefused(
            f"A row's key is not valid UTF-8 (column {shown}), so nobody could ask for it. Filter such rows "
            'before the sink, or give the store the key codec "bytes".'
        ) from None


def _rows_with_null(parts: list[Any]) -> int:
    return int(np.count_nonzero(np.any([pc.is_null(part).to_numpy(False) for part in parts], axis=0)))


def _refuse_reserved(keys: Any) -> None:
    reserved = pc.starts_with(keys, heartbeat_key(""))
    if pc.any(reserved).as_py():
        raise WriteRefused(
            "A row's key is reserved for heartbeats (it begins with NUL, 'forebay-heartbeat', NUL)."
        )


def _with_suffix(keys: Any, suffixes: Any) -> Any:
    return pc.binary_join_element_wise(keys, suffixes.cast(keys.type), pa.scalar(b"", keys.type))


def _partitions(keys: Any, partitions: int, partitioner: StreamPartitioner | None) -> Any:
    if partitioner is not None:
        chosen = [partitioner.partition(key, partitions) for key in keys.to_pylist()]
        return np.asarray(chosen, dtype=np.int32)
    wide = pa.types.is_large_binary(keys.type)
    _, offsets_buffer, data_buffer = keys.buffers()
    dtype = np.int64 if wide else np.int32
    offsets = np.frombuffer(offsets_buffer, dtype=dtype)[keys.offset : keys.offset + len(keys) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return murmur2_partitions(data, offsets, partitions)
