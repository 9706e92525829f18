"""Code for Spark's Python workers: a batch's rows as records for Spark's Kafka sink.

Imports only what ``executor`` does: it is pickled by value too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay_changelog.record_headers import DELETED_HEADER, VALID_FROM_HEADER
from forebay_spark.executor import Batches, forget_archives, without_ends
from forebay_spark.repeated_keys import first_repeated, several_rows

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def keyed_records(
    write_name: str, batch_id: int, ordered: bool, versioned: bool, latest: bool = False
) -> Callable[[Batches], Batches]:
    """A ``mapInArrow`` function: rows, sorted by partition and key, as records for Spark's Kafka sink.

    Those of a versioned store carry their valid-from in a header, and deletions with an order are marked in one.
    Raises ``WriteRefused``.
    """

    def run(batches: Batches) -> Batches:
        forget_archives()
        previous = None
        for batch in map(without_ends, batches):
            names = ["partition", "key", "value"]
            columns = [batch.column(name) for name in names]
            if not ordered and len(batch):
                repeated = first_repeated(columns[1], columns[2], previous, latest)
                if repeated is not None:
                    raise several_rows(repeated, batch_id, write_name, latest)
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


def _valid_from_headers(timestamps_ms: Any) -> Any:
    count = len(timestamps_ms)
    ends, digits = np.arange(count + 1, dtype=np.int32) * 8, timestamps_ms.to_numpy().astype(">i8")
    values = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(digits)])
    return _headers(VALID_FROM_HEADER, values, np.ones(count, dtype=bool))


def _deleted_headers(values: Any) -> Any:
    deleted = pc.is_null(values).to_numpy(False)
    return _headers(DELETED_HEADER, pa.repeat(pa.scalar(b""), int(deleted.sum())), deleted)


def _headers(name: str, values: Any, present: Any) -> Any:
    """Each row's headers: one of these values, in turn, for those that have it."""
    offsets = np.concatenate([[0], np.cumsum(present)]).astype(np.int32)
    headers = pa.StructArray.from_arrays([pa.repeat(pa.scalar(name), len(values)), values], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(offsets), headers).cast(_HEADERS)
