"""What a store's log holds now: read once, when state must be compared with it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator

from forebay.changelog import Changelog, Consumer, Wake
from forebay.errors import ChangelogError, ChangelogUnreachable
from forebay.tasks import TopicPartition
from forebay.topology import StoreSpec

_RECORDS_PER_POLL = 10_000
_PATIENCE_S = 60.0
_WAIT_S = 0.1
_DIGEST_BYTES = 8


def value_digest(value: bytes) -> bytes:
    """Identifies a value among those of one key."""
    return hashlib.blake2b(value, digest_size=_DIGEST_BYTES).digest()


def log_content(changelog: Changelog, spec: StoreSpec) -> Iterator[tuple[bytes, bytes | None]]:
    """Every record's key and its value's digest, None for a tombstone, up to where each log ended at first.

    Raises ``ChangelogError``.
    """
    consumer = changelog.consumer(replay=True)
    try:
        for partition in range(spec.partitions):
            yield from _partition_content(consumer, TopicPartition(spec.topic, partition))
    finally:
        consumer.close()


def _partition_content(consumer: Consumer, tp: TopicPartition) -> Iterator[tuple[bytes, bytes | None]]:
    consumer.assign(tp, 0)
    never_set, position, end = Wake(), 0, None
    deadline = time.monotonic() + _PATIENCE_S
    try:
        while end is None or position < end:
            for batch in consumer.poll(_RECORDS_PER_POLL):
                end = batch.end.offset if end is None else end
                if batch.position > position:
                    deadline = time.monotonic() + _PATIENCE_S
                position = batch.position
                for _, key, value, _, is_heartbeat in batch.records:
                    if not is_heartbeat:
                        yield key, None if value is None else value_digest(value)
            failure = consumer.failures().get(tp)
            if failure is not None and failure.lasting:
                raise ChangelogError(failure.reason)
            if time.monotonic() > deadline:
                raise ChangelogUnreachable(f"The log {tp} delivers nothing after offset {position}.")
            if end is None or position < end:
                consumer.wait(never_set, _WAIT_S)
    finally:
        consumer.unassign(tp)
