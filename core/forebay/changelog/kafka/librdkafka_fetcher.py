"""Fetches any number of partitions, by librdkafka: in threads of its own, outside Python's lock.

It understands every property of a Kafka URL. It delivers records; a partition's position past transaction markers,
aborted records and compacted ones comes from end-of-partition events.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from forebay.changelog.kafka.client_close import close
from forebay.changelog.kafka.client_log import CLIENT_LOG
from forebay.changelog.kafka.fetcher import Fetched
from forebay.changelog.kafka.records import record_with_headers
from forebay.changelog.kafka.url import KafkaUrl
from forebay.task_ids import TopicPartition

_SOCKET_TIMEOUT_MS = 6_000
_LOST = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_TRUNCATED = KafkaError(KafkaError._LOG_TRUNCATION).str()
"""The client reports this with the code of any lost offset, and only by its text."""
_LASTING = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError._BAD_MSG,
        KafkaError._BAD_COMPRESSION,
        KafkaError._NOT_IMPLEMENTED,
    }
)


class LibrdkafkaFetcher:
    """A ``Fetcher`` that reads further ahead for a ``replay``.

    Raises confluent-kafka's ``KafkaException`` if the client cannot be started.
    """

    def __init__(self, url: KafkaUrl, *, replay: bool = False) -> None:
        self._waiting: list[Message] = []
        self._client = Consumer(
            url.librdkafka(
                group_id="forebay",
                enable_auto_commit=False,
                isolation_level="read_committed",
                enable_partition_eof=True,
                auto_offset_reset="error",
                allow_auto_create_topics=False,
                # By default it delivers what a disk has damaged.
                check_crcs=url.properties.get("check.crcs", "true"),
                # A frozen leader answers nothing; by default a minute passes until the next one is asked.
                socket_timeout_ms=_SOCKET_TIMEOUT_MS,
                # By default it pauses for a second once its queue is full, which costs most of the speed.
                fetch_queue_backoff_ms=2,
                queued_min_messages=1_000_000 if replay else 100_000,
                queued_max_messages_kbytes=65_536,
                # A position passes transaction markers only after this long without records. Until then they count
                # as lag, a replay is not at its end, and where compaction may have reached, nothing is consistent.
                fetch_wait_max_ms=10 if replay else 25,
            ),
            logger=CLIENT_LOG,
        )

    def start(self, topic_partition: TopicPartition, offset: int) -> None:
        """Fetch a partition from this offset on."""
        # As a number: the client takes half a second to look up a name for it.
        self._client.incremental_assign([KafkaTopicPartition(*topic_partition, offset)])

    def stop(self, topic_partition: TopicPartition) -> None:
        """Stop fetching a partition."""
        self._client.incremental_unassign([KafkaTopicPartition(*topic_partition)])
        self._waiting = [message for message in self._waiting if _partition_of(message) != topic_partition]

    def wait(self, timeout_s: float) -> None:
        """Return when there is something to take, or after the time-out."""
        if not self._waiting:
            self._waiting = self._client.consume(1, timeout_s)

    def take(self, most_records: int) -> dict[TopicPartition, Fetched]:
        """What is there; see ``Fetcher``."""
        messages = self._waiting + self._client.consume(most_records, 0)
        self._waiting = []
        by_partition: dict[tuple[str, int], list[Message]] = {}
        events: list[Message] = []
        for message in messages:
            if message.error() is None:
                by_partition.setdefault((message.topic(), message.partition()), []).append(message)  # type: ignore[arg-type]
            else:
                events.append(message)
        fetched = {TopicPartition(*tp): _fetched(of_one) for tp, of_one in by_partition.items()}
        for event in events:
            tp = _partition_of(event)
            fetched[tp] = _after(fetched.get(tp, Fetched([])), event)
        return fetched

    def end_at_last_response(self, topic_partition: TopicPartition) -> int:
        """The high watermark of the newest response, so at or after that of the response with any record."""
        watermarks = self._client.get_watermark_offsets(KafkaTopicPartition(*topic_partition), cached=True)
        return max(0, watermarks[1]) if watermarks else 0

    def close(self, *, wait: bool = True) -> None:
        """Close the connections; see ``Fetcher``."""
        if wait:
            close(self._client)
        else:
            close(self._client, patience_s=0)


def _partition_of(message: Message) -> TopicPartition:
    return TopicPartition(message.topic(), message.partition())  # type: ignore[arg-type]


def _fetched(messages: list[Any]) -> Fetched:
    records = [
        (m.offset(), m.key(), m.value(), m.timestamp()[1], False)
        if m.headers() is None
        else record_with_headers(m.offset(), m.key(), m.value(), m.timestamp()[1], m.headers())
        for m in messages
    ]
    last = messages[-1]
    epoch = last.leader_epoch()
    return Fetched(
        records,
        records[-1][0] + 1,
        newest_epoch_ms=last.timestamp()[1],
        leader_epoch=-1 if epoch is None else epoch,
    )


def _after(fetched: Fetched, event: Message) -> Fetched:
    """What was fetched, and an event that is no record."""
    error = event.error()
    assert error is not None
    if error.code() == KafkaError._PARTITION_EOF:
        end = event.offset() or 0
        return fetched._replace(position=max(fetched.position, end), end=end)
    if error.code() in _LOST:
        return fetched._replace(lost=True, truncated=_TRUNCATED in error.str())
    return fetched._replace(error=error.str(), lasting=error.code() in _LASTING)
