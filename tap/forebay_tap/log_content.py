"""What a store's log holds now: read once, when state must be compared with it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog import Changelog, Consumer
from forebay_changelog.log_reader import batches_to_end
from forebay_tap.conversion import Conversion
from forebay_tap.plain_conversion import StoreRecord
from forebay_tap.scratch import ContentIndex
from forebay_tap.spark_checkpoint.changes import StateEntry

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


def content_differences(
    conversion: Conversion,
    content: ContentIndex,
    partitions: Iterable[Iterable[StateEntry]],
    now_ms: Callable[[], int],
    is_withdrawn: Callable[[bytes], bool],
) -> Iterator[StoreRecord]:
    """The records that make a log's content equal to what the partitions of a state hold, in which it is noted.

    What the state does not have is deleted if the conversion says so, or if it is withdrawn.
    """
    for entries in partitions:
        for record in conversion.load(entries, now_ms()):
            _, log_key, value = record
            if value is not None and content.changes(log_key, value_digest(value)):
                yield record
    keys = conversion.mapping.spec.stored_keys
    for key in content.unseen():
        if conversion.is_gone(key) or is_withdrawn(key):
            content.remove(key)
            yield keys.split_changelog(key, 0).plain, key, None
