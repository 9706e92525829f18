"""Tombstones for what higher orders have superseded: Kafka's compaction then removes it.

By itself it does not: to it, each order of a key is a key of its own. The record of the highest order never gets
one, so a topic has the same content before and after, whatever of it Kafka has compacted.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from forebay.record_orders import split_order, with_order
from forebay_changelog.kafka.client_close import CLIENT_LOG, messages_to_end, reading
from forebay_changelog.kafka.url import KafkaUrl
from forebay_changelog.record_headers import writer_of

_PATIENCE_S = 30.0
_QUEUE_FULL_S = 0.1
_CACHE = "PRAGMA cache_size=-32768"
_SUPERSEDED = """
SELECT plain, record_order FROM record JOIN (SELECT plain, max(record_order) AS highest FROM record GROUP BY plain)
USING (plain) WHERE record_order < highest AND NOT is_removed
"""


def append_tombstones(url: KafkaUrl, topic: str, partition: int) -> int:
    """Append a tombstone for each superseded record of a partition; returns how many. Raises ``KafkaException``.

    A second call for the same records appends none.
    """
    # Of its pages, those that do not fit into the cache go to a deleted file.
    with contextlib.closing(sqlite3.connect("", isolation_level=None)) as scratch:
        scratch.execute(_CACHE)
        scratch.execute(
            "CREATE TABLE record (plain BLOB, record_order INTEGER, is_removed INTEGER, "
            "PRIMARY KEY (plain, record_order)) WITHOUT ROWID"
        )
        with reading(url) as consumer:
            for messages in messages_to_end(consumer, TopicPartition(topic, partition, 0), _PATIENCE_S):
                scratch.execute("BEGIN")
                scratch.executemany(
                    "INSERT OR REPLACE INTO record VALUES (?, ?, ?)", filter(None, map(_row, messages))
                )
                scratch.execute("COMMIT")
        superseded = ((with_order(*row), 0) for row in scratch.execute(_SUPERSEDED))
        count, _ = append_deletions(url, topic, partition, superseded)
        return count


def _row(message: Message) -> tuple[bytes, int, bool] | None:
    """User key, order, and whether it is a tombstone; None for heartbeats and what has no order."""
    key = message.key()
    if not isinstance(key, bytes) or writer_of(key) is not None:
        return None
    try:
        return *split_order(key), message.value() is None
    except ValueError:
        return None


def append_deletions(
    url: KafkaUrl, topic: str, partition: int, keys: Iterable[tuple[bytes, int]]
) -> tuple[int, int]:
    """Append a tombstone for each key, with its timestamp in epoch milliseconds, 0 for now.

    They are of no writer. Returns their number and the offset after the last one. Raises ``KafkaException``.
    """
    failures: list[KafkaError] = []
    next_offset = 0

    def on_delivery(error: Any, message: Message) -> None:
        nonlocal next_offset
        if error is not None:
            failures.append(error)
        else:
            next_offset = max(next_offset, (message.offset() or 0) + 1)

    producer = Producer(url.librdkafka(enable_idempotence=True), logger=CLIENT_LOG)
    count = 0
    for key, timestamp_ms in keys:
        while not failures:
            try:
                producer.produce(
                    topic, key=key, partition=partition, timestamp=timestamp_ms, on_delivery=on_delivery
                )
                break
            except BufferError:
                producer.poll(_QUEUE_FULL_S)
        count += 1
    if producer.flush(_PATIENCE_S):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
    if failures:
        raise KafkaException(failures[0])
    return count, next_offset
