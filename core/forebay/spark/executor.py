"""Code for Spark's Python workers: partitions a batch's rows, then writes each partition.

Imports only the standard library, numpy, pyarrow and modules that do the same: it is pickled by value, so that
executors do not need forebay.
"""

from __future__ import annotations

import itertools
import json
import socket
import sqlite3
import sys
import zipimport
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.changelog.heartbeat_keys import heartbeat_key
from forebay.changelog.record_headers import DELETED_HEADER, VALID_FROM_HEADER
from forebay.changelog.sqlite.partition import (
    WriteRefused,
    append_batch,
    check_directory,
    partition_path,
)
from forebay.partitioning import StreamPartitioner
from forebay.record_orders import split_order
from forebay.spark.batch_murmur2 import murmur2_partitions

Batches = Iterator["pa.RecordBatch"]

END = (1 << 31) - 1
"""The partition of the row that follows a task's last one. If a task is cancelled, Spark ends its rows between two
Arrow batches, as if there were no more: without this row, what had come of them would be committed."""
_SAFE_INTEGER = (1 << 53) - 1
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


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


def partition_rows(
    columns: KeyColumns, partitions: int, slots: tuple[int, ...], partitioner: StreamPartitioner | None
) -> Callable[[Batches], Batches]:
    """A ``mapInArrow`` function: adds each row's partition, and the slot that Spark shuffles it by.

    ``partitioner`` is None for murmur2, which is computed on whole columns. After all rows comes one for each slot
    that says so. Raises ``WriteRefused`` for null, reserved and unreadable keys.
    """

    def run(batches: Batches) -> Batches:
        _forget_archives()
        nulls, timeless, orderless, schema = 0, 0, 0, None
        for batch in batches:
            keys, null_count = _keys(batch, columns)
            nulls += null_count
            timeless += batch.column("timestamp_ms").null_count
            if columns.latest_by is not None:
                orderless += batch.column("suffix").null_count
            if nulls or timeless or orderless:
                continue
            _refuse_reserved(keys)
            chosen = _partitions(keys, partitions, partitioner)
            changelog_keys = _with_suffix(keys, batch.column("suffix")) if columns.suffix else keys
            kept = [name for name in batch.schema.names if name not in ("key", "suffix")]
            placed = pa.RecordBatch.from_arrays(
                [
                    pa.array(np.asarray(slots, dtype=np.int32)[chosen]),
                    pa.array(chosen),
                    changelog_keys,
                    *(batch.column(name) for name in kept),
                ],
                names=["slot", "partition", "key", *kept],
            )
            schema = placed.schema
            yield placed
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
        if orderless:
            raise WriteRefused(
                f"{orderless} rows of this task have a null order (column {columns.latest_by!r}, the store's "
                "latest_by). Filter them before the sink, or give them the lowest order there is."
            )
        if schema is not None:
            yield _ends(schema, sorted(set(slots)))

    return run


def write_rows(target: Target) -> Callable[[Batches], Batches]:
    """A ``mapInArrow`` function: writes rows, sorted by partition and key, and yields what it wrote.

    Each partition's rows and marker commit in one transaction; raises ``WriteRefused``.
    """

    def run(batches: Batches) -> Batches:
        _forget_archives()
        for partition, group in itertools.groupby(_rows(batches), key=lambda row: row[0]):
            check_directory(target.directory, target.directory_id, target.driver_host, socket.gethostname())
            path = partition_path(target.directory, target.topic, partition)
            try:
                count, next_offset = append_batch(
                    path,
                    _checked(group, target),
                    writer=target.writer,
                    query_id=target.query_id,
                    batch_id=target.batch_id,
                    write_name=target.write_name,
                    timed=target.versioned,
                )
            except sqlite3.Error as error:
                raise WriteRefused(
                    f"The log {path} cannot be written: {error}. Is its disk full or read-only, the file gone, or "
                    "another process writing to it for half a minute? Mend that, and start the query again."
                ) from None
            yield pa.RecordBatch.from_pydict(
                {
                    "partition": pa.array([partition], pa.int32()),
                    "row_count": pa.array([count], pa.int64()),
                    "next_offset": pa.array([next_offset], pa.int64()),
                }
            )

    return run


def keyed_records(
    write_name: str, batch_id: int, ordered: bool, versioned: bool, latest: bool = False
) -> Callable[[Batches], Batches]:
    """A ``mapInArrow`` function: rows, sorted by partition and key, as records for Spark's Kafka sink.

    Those of a versioned store carry their valid-from in a header, and deletions with an order are marked in one.
    Raises ``WriteRefused``.
    """

    def run(batches: Batches) -> Batches:
        _forget_archives()
        previous = None
        for batch in map(_without_ends, batches):
            names = ["partition", "key", "value"]
            columns = [batch.column(name) for name in names]
            if not ordered and len(batch):
                repeated = _first_repeated(columns[1], columns[2], previous, latest)
                if repeated is not None:
                    raise _several_rows(repeated, batch_id, write_name, latest)
                previous = columns[1][-1].as_py(), columns[2][-1].as_py()
            if versioned:
                names.append("headers")
                columns.append(_valid_from_headers(batch.column("timestamp_ms")))
            if latest:
                names.append("headers")
                columns.append(_deleted_headers(columns[2]))
                columns[2] = pc.fill_null(columns[2], b"")
            yield pa.RecordBatch.from_arrays(columns, names=names)

    return run


def _forget_archives() -> None:
    """Spare this process's next task from reading Spark's own zip archives.

    A Python worker of Spark invalidates the import caches at the start of each task, and up to Python 3.11 a zip
    importer then reads its archive's directory at once: 0.3 s a task. A later import from the archive gets a new
    importer.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]


def _first_repeated(keys: Any, values: Any, previous: tuple[bytes, bytes | None] | None, latest: bool) -> Any:
    """The first key that is equal to the one before it; equal keys belong to one partition.

    ``previous`` is the row before all of these. Equal rows of one order are no repetition: sources deliver again.
    """
    first = keys[0].as_py(), values[0].as_py()
    if previous is not None and first[0] == previous[0] and not (latest and first == previous):
        return first[0]
    repeated = pc.equal(keys[1:], keys[:-1])
    if latest:
        differs = pc.fill_null(pc.not_equal(values[1:], values[:-1]), True)
        both_null = pc.and_(pc.is_null(values[1:]), pc.is_null(values[:-1]))
        repeated = pc.and_(repeated, pc.and_not(differs, both_null))
    found = pc.index(repeated, True).as_py()
    return keys[found].as_py() if found >= 0 else None


def _valid_from_headers(timestamps_ms: Any) -> Any:
    return pa.array(
        [
            [{"key": VALID_FROM_HEADER, "value": time_ms.to_bytes(8, "big", signed=True)}]
            for time_ms in timestamps_ms.to_pylist()
        ],
        _HEADERS,
    )


def _deleted_headers(values: Any) -> Any:
    marks = [
        [{"key": DELETED_HEADER, "value": b""}] if deleted else [] for deleted in pc.is_null(values).to_pylist()
    ]
    return pa.array(marks, _HEADERS)


def _several_rows(key: bytes, batch_id: int, write_name: str, latest: bool) -> WriteRefused:
    same = ""
    if latest:
        key, order = split_order(key)
        same = f" with the order {order}"
    return WriteRefused(
        f"Batch {batch_id} has more than one row for the key {key!r} of {write_name!r}{same}, "
        "and nothing determines which is the latest. Give the sink order_by=, or aggregate by the key."
    )


def _ends(schema: pa.Schema, slots: list[int]) -> pa.RecordBatch:
    """For each slot the row that ends its rows: it sorts after all of them."""
    columns = {"slot": slots, "partition": [END] * len(slots), "key": [b""] * len(slots)}
    arrays = [pa.array(columns.get(field.name, [None] * len(slots)), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _without_ends(batch: pa.RecordBatch) -> pa.RecordBatch:
    count = len(batch)
    while count and batch.column("partition")[count - 1].as_py() == END:
        count -= 1
    return batch.slice(0, count)


def _rows(batches: Batches) -> Iterator[tuple[int, bytes, bytes | None, int]]:
    """All rows; raises ``EOFError`` after the last one if more should follow."""
    received = ended = False
    for batch in batches:
        rows = _without_ends(batch)
        received, ended = received or len(batch) > 0, ended or len(rows) < len(batch)
        columns = [rows.column(name).to_pylist() for name in ("partition", "key", "value", "timestamp_ms")]
        yield from zip(*columns, strict=True)
    if received and not ended:
        raise EOFError("The task was cancelled; nothing of what it wrote is kept.")


def _checked(
    group: Iterator[tuple[int, bytes, bytes | None, int]], target: Target
) -> Iterator[tuple[bytes, bytes | None, int]]:
    previous: tuple[bytes, bytes | None] | None = None
    for _, key, value, timestamp_ms in group:
        if previous is not None and key == previous[0] and not target.ordered:
            if target.latest and value == previous[1]:
                # Sources deliver records again.
                continue
            raise _several_rows(key, target.batch_id, target.write_name, target.latest)
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
        rows = zip(*(part.to_pylist() for part in parts), strict=True)
        return pa.array([_json_key(row) for row in rows], pa.binary()), nulls
    except (pa.ArrowInvalid, UnicodeDecodeError):
        shown = ", ".join(repr(name) for name in columns.names)
        raise WriteRefused(
            f"A row's key is not valid UTF-8 (column {shown}), so nobody could ask for it. Filter such rows "
            'before the sink, or give the store the key codec "bytes".'
        ) from None


def _rows_with_null(parts: list[Any]) -> int:
    return int(np.count_nonzero(np.any([pc.is_null(part).to_numpy(False) for part in parts], axis=0)))


def _json_key(row: tuple[Any, ...]) -> bytes:
    """RFC 8785 canonical JSON of an array of strings, integers, booleans and nulls."""
    for part in row:
        if isinstance(part, int) and abs(part) > _SAFE_INTEGER:
            raise WriteRefused(
                f"The key {row!r} contains an integer beyond 2^53, which JSON keys cannot: cast it to string."
            )
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()


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
