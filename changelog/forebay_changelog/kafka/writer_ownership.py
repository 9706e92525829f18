"""Which query writes under a name on Kafka, according to the topic's heartbeats, which outlive their drivers."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from forebay_changelog.base import Heartbeat
from forebay_changelog.kafka.client_close import messages_to_end, reading
from forebay_changelog.kafka.transient_errors import ELECTING
from forebay_changelog.kafka.url import KafkaUrl
from forebay_changelog.record_headers import COMPLETED_HEADER, SUPERSEDED_HEADER, writer_of

log = logging.getLogger(__name__)

_SEARCH_DEPTHS = (1_000, 30_000, 1_000_000)
"""In offsets. A living writer's last heartbeat is at most a batch away from the end."""
_EVERYTHING = sys.maxsize
_TIMEOUT_S = 10.0
_MAX_SUPERSEDED = 16
_RETRY_S = 0.1


class WriterOwnership(NamedTuple):
    """The query that last wrote under a name, and its predecessors, the newest first."""

    query_id: str
    superseded: tuple[str, ...]

    def header(self) -> tuple[str, bytes]:
        """The record header that lists the predecessors."""
        return SUPERSEDED_HEADER, json.dumps(self.superseded).encode()


def take_ownership(url: KafkaUrl, topic: str, writer: str, query_id: str) -> WriterOwnership | None:
    """A query's claim to a name, None if a query that superseded it has it. Raises ``KafkaException``."""
    heartbeat = _last_heartbeat(url, topic, writer).heartbeat
    last = None if heartbeat is None else _ownership_of(heartbeat)
    if last is None:
        return WriterOwnership(query_id, ())
    if last.query_id == query_id:
        return last
    if query_id in last.superseded:
        return None
    return WriterOwnership(query_id, (last.query_id, *last.superseded)[:_MAX_SUPERSEDED])


def has_written(url: KafkaUrl, topic: str, writer: str, query_id: str) -> bool | None:
    """Whether the topic has a heartbeat of a query under a name, or of one that superseded it there.

    None if that is not known: the topic may not be read, the writer was retired, or its last heartbeat is too far
    from the end. Raises ``KafkaException``.
    """
    last = _last_heartbeat(url, topic, writer)
    if last.heartbeat is None:
        return False if last.searched_all else None
    claimed = _ownership_of(last.heartbeat)
    return None if claimed is None else query_id in (claimed.query_id, *claimed.superseded)


def has_completed(url: KafkaUrl, topic: str, writer: str) -> bool:
    """Whether the last heartbeat of a writer that the topic has says that it has completed.

    Raises ``KafkaException``.
    """
    last = _last_heartbeat(url, topic, writer).heartbeat
    return last is not None and COMPLETED_HEADER in dict(last.headers() or ())


def known_writers(url: KafkaUrl, topic: str, *, max_offsets: int | None = _SEARCH_DEPTHS[-1]) -> set[str] | None:
    """The writers that are not retired; None if the topic may not be read, or is longer than ``max_offsets``.

    Raises ``KafkaException``.
    """
    try:
        with reading(url) as consumer:
            beginning, end = _watermarks(consumer, TopicPartition(topic, 0))
            if max_offsets is not None and end - beginning > max_offsets:
                return None
            found = _last_heartbeats(consumer, TopicPartition(topic, 0, beginning))
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise
        return None
    return {writer for writer, heartbeat in found.items() if heartbeat.value() is not None}


def last_heartbeats(url: KafkaUrl, topic: str, writer: str, partitions: int) -> list[Heartbeat | None]:
    """A writer's newest heartbeat in each of the first partitions, however far from the end; None where there is
    none or the writer was retired.

    Raises ``KafkaException``.
    """
    depths = (*_SEARCH_DEPTHS, _EVERYTHING)
    with reading(url) as consumer:
        found = [
            _search(consumer, TopicPartition(topic, number), writer, depths).heartbeat
            for number in range(partitions)
        ]
    values = (None if heartbeat is None else heartbeat.value() for heartbeat in found)
    return [None if value is None else Heartbeat.parse(value) for value in values]


class _LastHeartbeat(NamedTuple):
    heartbeat: Message | None
    searched_all: bool
    """Whether it was looked for from the topic's beginning on."""


def _last_heartbeat(url: KafkaUrl, topic: str, writer: str) -> _LastHeartbeat:
    """The writer's last heartbeat near the end of the topic, if it may be read."""
    try:
        with reading(url) as consumer:
            # Each heartbeat is in all partitions, so reading the first is enough.
            return _search(consumer, TopicPartition(topic, 0), writer, _SEARCH_DEPTHS)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise
        log.warning(
            "no permission to read the topic %r, so it is not known whether another query took over as %r",
            topic,
            writer,
        )
        return _LastHeartbeat(None, searched_all=False)


def _search(consumer: Consumer, partition: TopicPartition, writer: str, depths: tuple[int, ...]) -> _LastHeartbeat:
    """The writer's last heartbeat within so many offsets from a partition's end, tried in turn."""
    beginning, end = _watermarks(consumer, partition)
    for offsets in depths:
        start = max(beginning, end - offsets)
        from_there = TopicPartition(partition.topic, partition.partition, start)
        found = _last_heartbeats(consumer, from_there).get(writer)
        if found is not None or start == beginning:
            return _LastHeartbeat(found, start == beginning)
    return _LastHeartbeat(None, searched_all=False)


def _watermarks(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """The first offset and the end; a topic just created may not have a leader yet. Raises ``KafkaException``."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            beginning, end = consumer.get_watermark_offsets(partition, _TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() not in ELECTING or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)
        else:
            return beginning, end


def _last_heartbeats(consumer: Consumer, start: TopicPartition) -> dict[str, Message]:
    """Each writer's last one from an offset on; raises ``KafkaException`` if nothing arrives for a while."""
    found: dict[str, Message] = {}
    for messages in messages_to_end(consumer, start, _TIMEOUT_S):
        for message in messages:
            writer = writer_of(message.key())
            if writer is not None:
                found[writer] = message
    return found


def _ownership_of(heartbeat: Message) -> WriterOwnership | None:
    superseded = dict(heartbeat.headers() or ()).get(SUPERSEDED_HEADER) or b"[]"
    try:
        return WriterOwnership(Heartbeat.parse(heartbeat.value() or b"").query_id, tuple(json.loads(superseded)))
    except (ValueError, TypeError):
        # The writer was retired, or it is not one of our heartbeats.
        return None
