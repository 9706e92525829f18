"""What a store's log holds now: read once, when state must be compared with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog import Changelog, Consumer
from forebay_changelog.log_reader import batches_to_end

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
    for batch in batches_to_end(consumer, tp):
        for _, key, value, _, is_heartbeat in batch.records:
            if not is_heartbeat:
                yield key, None if value is None else value_digest(value)
