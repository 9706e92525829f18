"""Adds to rows of a Spark job what a store says of their keys, read through the router beside the executor.

Executors need forebay's client and this module: install both there, or give this one to ``--py-files``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, Unpack

import pyarrow as pa

from forebay.client import Client
from forebay.errors import Problem, UnknownKey
from forebay_client.options import ReadOptions
from forebay_client.results import Answer

ADDED_COLUMNS = "value string, record_lag bigint, time_lag_ms bigint"
"""What rows get: the value as JSON, null if the key has none, and how far behind it may be."""

_ADDED = pa.schema([("value", pa.string()), ("record_lag", pa.int64()), ("time_lag_ms", pa.int64())])
_Batches: TypeAlias = Iterator[pa.RecordBatch]


def enrich(router: str, store: str, column: str, **options: Unpack[ReadOptions]) -> Callable[[_Batches], _Batches]:
    """A ``mapInArrow`` function: adds ``ADDED_COLUMNS`` to rows by the key in a column.

    A key that cannot be read within the bounds of ``options`` fails the task with the ``Problem`` that says why.
    Spark then retries the task.
    """

    def added(batches: _Batches) -> _Batches:
        client = client_of(router)
        for batch in batches:
            keys = batch.column(column).to_pylist()
            distinct = list({key: None for key in keys if key is not None})
            answers = dict(zip(distinct, client.get_many(store, distinct, **options), strict=True))
            yield _with_answers(batch, [answers.get(key) for key in keys])

    return added


@functools.cache
def client_of(router: str) -> Client:
    """The one client of this Python worker, which Spark uses for task after task.

    Spark forks its Python workers. This runs in a worker and not in the process that forks it.
    """
    return Client(router)


def _with_answers(batch: pa.RecordBatch, answers: Sequence[Answer | Problem | None]) -> pa.RecordBatch:
    rows = [_row(answer) for answer in answers]
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in _ADDED]
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=pa.schema([*batch.schema, *_ADDED]))


def _row(answer: Answer | Problem | None) -> Mapping[str, str | int | None]:
    if answer is None:
        return {"value": None, "record_lag": None, "time_lag_ms": None}
    if isinstance(answer, Problem) and not isinstance(answer, UnknownKey):
        raise answer
    value = None if isinstance(answer, UnknownKey) else json.dumps(answer.value)
    lag = answer.lag
    return {"value": value, "record_lag": lag.record_lag, "time_lag_ms": lag.time_lag_ms}
