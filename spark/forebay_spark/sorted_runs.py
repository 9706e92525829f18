"""Sorted runs: a batch's rows on their way into a SQLite changelog, in files beside it.

Each task sorts what it has by partition and key, and writes it to files. From all tasks' files, what belongs to
one partition is merged and appended. Why not by Spark's shuffle: SQLite serves one machine, so every task sees the
files, and rows go to Python once instead of twice.

Imports only what ``executor`` does: it is pickled by value too.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay_changelog.sqlite.log_file import check_directory, create_private
from forebay_spark.executor import (
    Batches,
    Row,
    Target,
    append_partition,
    checked,
    forget_archives,
)
from forebay_spark.repeated_keys import first_repeated, several_rows

RUN_BYTES = 64 << 20
"""A task's rows are sorted in memory, so many at a time."""
CHUNK_ROWS = 16384
"""The most rows of each run that are merged at a time."""
_CHUNK_BYTES = 64 << 20
"""The most of all runs together, unless that is less than a row of each."""
_COLUMNS = ["partition", "key", "value", "timestamp_ms"]
_BY_KEY = [("key", "ascending"), ("value", "ascending")]


class RunPart(NamedTuple):
    """One partition's rows in a run."""

    path: str
    partition: int
    first_row: int
    row_count: int


def write_runs(
    target: Target, directory: str, place: Callable[[Batches], Batches]
) -> Callable[[Batches], Batches]:
    """A ``mapInArrow`` function: writes placed rows to runs in a directory, and yields their ``RunPart`` s.

    Raises ``WriteRefused`` as ``place`` does, and where the directory is not the driver's.
    """

    def run(batches: Batches) -> Batches:
        forget_archives()
        check_directory(target.directory, target.directory_id, target.driver_host, socket.gethostname())
        held: list[pa.RecordBatch] = []
        for batch in place(batches):
            held.append(batch)
            if sum(each.nbytes for each in held) >= RUN_BYTES:
                yield _write_run(held, directory)
                held = []
        if held:
            yield _write_run(held, directory)

    return run


def append_runs(target: Target, parts_by_task: Sequence[Sequence[RunPart]]) -> Callable[[Batches], Batches]:
    """A ``mapInArrow`` function of tasks' numbers: appends the parts of each, and yields what it wrote.

    Raises ``WriteRefused``.
    """

    def run(batches: Batches) -> Batches:
        forget_archives()
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for partition, parts in by_partition(parts_by_task[task]).items():
                    yield append_parts(target, partition, parts)

    return run


def append_parts(target: Target, partition: int, parts: Sequence[RunPart]) -> pa.RecordBatch:
    """Append one partition's rows of several runs; see ``append_partition``."""
    rows = _rows(merged(parts), target)
    return append_partition(target, partition, checked(rows, target) if target.latest else rows)


def by_partition(parts: Iterable[RunPart]) -> dict[int, list[RunPart]]:
    """The parts of each partition."""
    grouped: dict[int, list[RunPart]] = {}
    for part in parts:
        grouped.setdefault(part.partition, []).append(part)
    return grouped


def merged(parts: Sequence[RunPart]) -> Iterator[pa.Table]:
    """A partition's rows, sorted by key and value, some at a time."""
    rests = [_rows_of(part) for part in parts]
    while rests:
        count_at_once = _count_at_once(rests)
        heads = [rest.slice(0, count_at_once) for rest in rests]
        bounds = [_last_key(head) for head, rest in zip(heads, rests, strict=True) if len(rest) > len(head)]
        taken = [len(head) if not bounds else _rows_up_to(head, min(bounds)) for head in heads]
        table = pa.concat_tables([head.slice(0, count) for head, count in zip(heads, taken, strict=True)])
        yield table if len(rests) == 1 else table.take(pc.sort_indices(table, sort_keys=_BY_KEY))
        rests = [rest.slice(count) for rest, count in zip(rests, taken, strict=True) if count < len(rest)]


def _write_run(held: list[pa.RecordBatch], directory: str) -> pa.RecordBatch:
    table = pa.Table.from_batches(held).select(_COLUMNS).combine_chunks()
    ordered = table.take(pc.sort_indices(table, sort_keys=[("partition", "ascending"), *_BY_KEY]))
    path = os.path.join(directory, f"{uuid.uuid4()}.arrow")
    create_private(path)
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, ordered.schema) as writer:
        writer.write_table(ordered, CHUNK_ROWS)
    partitions, first_rows, counts = np.unique(
        ordered.column("partition").to_numpy(), return_index=True, return_counts=True
    )
    return pa.RecordBatch.from_pydict(
        {
            "path": pa.array([path] * len(partitions)),
            "partition": pa.array(partitions, pa.int32()),
            "first_row": pa.array(first_rows, pa.int64()),
            "row_count": pa.array(counts, pa.int64()),
        }
    )


def _rows_of(part: RunPart) -> pa.Table:
    """A part's rows, which are read only as they are used."""
    return pa.ipc.open_file(pa.memory_map(part.path)).read_all().slice(part.first_row, part.row_count)


def _count_at_once(tables: Sequence[pa.Table]) -> int:
    row_bytes = sum(table.nbytes / len(table) for table in tables)
    return min(CHUNK_ROWS, max(1, int(_CHUNK_BYTES / row_bytes)))


def _last_key(rows: pa.Table) -> bytes:
    key: bytes = rows.column("key")[-1].as_py()
    return key


def _rows_up_to(rows: pa.Table, key: bytes) -> int:
    keys = rows.column("key")
    return int(pc.sum(pc.less_equal(keys, pa.scalar(key, keys.type))).as_py())


def _rows(tables: Iterable[pa.Table], target: Target) -> Iterator[Row]:
    """The tables' rows; several of one key are refused with ``WriteRefused``."""
    previous: Any = None
    for table in tables:
        keys, values = (table.column(name).combine_chunks() for name in ("key", "value"))
        repeated = first_repeated(keys, values, previous, target.latest)
        if repeated is not None:
            raise several_rows(repeated, target.batch_id, target.write_name, target.latest)
        listed = keys.to_pylist(), values.to_pylist()
        previous = listed[0][-1], listed[1][-1]
        yield from zip(*listed, table.column("timestamp_ms").to_pylist(), strict=True)
