"""Reads a log or a partition of it to its end, or its last records, whichever changelog has it."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator

from forebay.errors import ChangelogError, ChangelogUnreachable
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog.base import Batch, Changelog, Consumer, Record, Wake

_RECORDS_PER_POLL = 10_000
_PATIENCE_S = 60.0
_WAIT_S = 0.1
_WIDER = 4


def batches_to_end(consumer: Consumer, tp: TopicPartition, position: int = 0) -> Iterator[Batch]:
    """The batches from a position on, up to the end that the first of them states.

    A position before the log's beginning means the beginning. Raises ``ChangelogError`` if the partition cannot be
    read, ``ChangelogUnreachable`` if nothing arrives for a minute.
    """
    consumer.assign(tp, position)
    never_set, end = Wake(), None
    deadline = time.monotonic() + _PATIENCE_S
    try:
        while end is None or position < end:
            for batch in consumer.poll(_RECORDS_PER_POLL):
                end = batch.end.offset if end is None else end
                if batch.position > position:
                    deadline = time.monotonic() + _PATIENCE_S
                position = batch.position
                yield batch
                if not batch.records and position < batch.beginning:
                    position = batch.beginning
                    consumer.assign(tp, position)
            raise_lasting(consumer)
            if time.monotonic() > deadline:
                raise ChangelogUnreachable(f"The log {tp} delivers nothing after offset {position}.")
            if end is None or position < end:
                consumer.wait(never_set, _WAIT_S)
    finally:
        consumer.unassign(tp)


def records_to_end(changelog: Changelog, spec: StoreSpec) -> Iterator[tuple[int, Record]]:
    """Every record of a store's log but its heartbeats, with its partition; raises as ``batches_to_end``."""
    with contextlib.closing(changelog.consumer(replay=True)) as consumer:
        for partition in range(spec.partitions):
            for batch in batches_to_end(consumer, TopicPartition(spec.topic, partition)):
                yield from ((partition, record) for record in batch.records if not record[4])


def last_records(consumer: Consumer, tp: TopicPartition, count: int, end_offset: int) -> tuple[list[Record], int]:
    """The last ``count`` records below or after an end, as many as there are, and the offset after them.

    Raises as ``batches_to_end``. Why in ever wider steps: after compaction, or with transactions, offsets are
    missing.
    """
    reach = max(count, 1)
    while True:
        start = max(0, end_offset - reach)
        kept: deque[Record] = deque(maxlen=count)
        position = beginning = start
        for batch in batches_to_end(consumer, tp, start):
            kept.extend(batch.records)
            position, beginning = batch.position, batch.beginning
        if len(kept) == count or start <= beginning:
            return list(kept), position
        reach *= _WIDER


def raise_lasting(consumer: Consumer) -> None:
    """Raise ``ChangelogError`` if an assigned partition cannot be read, and will not be by itself."""
    for failure in consumer.failures().values():
        if failure.lasting:
            raise ChangelogError(failure.reason)
