"""Fetches any number of partitions, by librdkafka: in threads of its own, outside Python's lock.

Before a partition counts, its leader has confirmed the epoch that a replica has as its proof (KIP-320).

It understands every property of a Kafka URL. It delivers records; a partition's position past transaction markers,
aborted records and compacted ones comes from end-of-partition events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from forebay.codecs.values import headed
from forebay.log_epochs import EpochStart, OffsetAndEpoch
from forebay.task_ids import TopicPartition
from forebay_changelog.base import Record
from forebay_changelog.kafka.client_close import CLIENT_LOG, close
from forebay_changelog.kafka.url import KafkaUrl
from forebay_changelog.record_headers import DELETED_HEADER, HEARTBEAT_HEADER, VALID_FROM_HEADER, heartbeat_key

_HEARTBEATS = heartbeat_key("")
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


def record_with_headers(
    offset: int,
    key: bytes,
    value: bytes | None,
    timestamp_ms: int,
    headers: Iterable[tuple[str, bytes | None]],
) -> Record:
    """A record whose headers may mark it as a heartbeat or a deletion, or state from when its version is valid.

    Most have none, and a restore makes millions of them: those need not come here.
    """
    heartbeat = False
    for name, content in headers:
        if name == HEARTBEAT_HEADER:
            heartbeat = key is not None and key.startswith(_HEARTBEATS)
        elif name == VALID_FROM_HEADER and content:
            timestamp_ms = int.from_bytes(content, "big", signed=True)
        elif name == DELETED_HEADER:
            value = None
    return offset, key, value, timestamp_ms, heartbeat


class Fetched(NamedTuple):
    """What came of one partition since the last time, all of it read-committed."""

    records: list[Record]
    position: int = 0
    """Next offset to read, past markers, aborted and compacted records as far as that is known; 0 if unknown."""
    end: int | None = None
    """The offset beyond which a response, at least as new as those with the records, could not read."""
    newest_epoch_ms: int = 0
    """The timestamp of the last record, or the largest of the batch that it came in; 0 if unknown."""
    lost: bool = False
    """The position asked for is not in the log; nothing more is fetched."""
    truncated: bool = False
    """It is lost because what was read before it is no longer what the log contains there (KIP-320)."""
    error: str | None = None
    """Why a request failed."""
    lasting: bool = False
    """Whether such errors do not go away by themselves."""
    epochs: tuple[EpochStart, ...] = ()
    """Those of the leaders that appended the records; empty if unknown."""


class Fetcher:
    """Fetches partitions ahead of who takes the records, further for a ``replay``. Used by one thread.

    Values of the topics that are ``headed`` follow the headers of their records.

    Raises confluent-kafka's ``KafkaException`` if the client cannot be started.
    """

    def __init__(self, url: KafkaUrl, *, replay: bool = False, headed: Collection[str] = ()) -> None:
        self._headed = frozenset(headed)
        self._waiting: list[Message] = []
        self._to_seek: dict[TopicPartition, OffsetAndEpoch] = {}
        """Partitions that were assigned, and of which nothing counts before the client has the epoch to check."""
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

    def start(self, topic_partition: TopicPartition, offset: int, proof: OffsetAndEpoch | None = None) -> None:
        """Fetch a partition from this offset on, or from its proof on, once the leader has confirmed that.

        A log that does not have the record before the proof is lost, and ``truncated``.
        """
        if proof is not None:
            # Why not by what is assigned: the client checks an epoch there only for a topic that is new to it.
            self._to_seek[topic_partition] = proof
            offset = proof.offset
        # As a number: the client takes half a second to look up a name for it.
        self._client.incremental_assign([KafkaTopicPartition(*topic_partition, offset)])

    def stop(self, topic_partition: TopicPartition) -> None:
        """Stop fetching a partition; what was fetched and not taken is dropped."""
        self._to_seek.pop(topic_partition, None)
        self._client.incremental_unassign([KafkaTopicPartition(*topic_partition)])
        self._waiting = [message for message in self._waiting if _partition_of(message) != topic_partition]

    def wait(self, timeout_s: float) -> None:
        """Return when there is something to take, or after the time-out."""
        if not self._waiting:
            self._waiting = self._client.consume(1, timeout_s)

    def take(self, max_records: int) -> dict[TopicPartition, Fetched]:
        """What is there, without waiting: at most this many records of all partitions together."""
        unproven = self._seek()
        messages, self._waiting = self._waiting, []
        if len(messages) < max_records:
            messages = messages + self._client.consume(max_records - len(messages), 0)
        if unproven:
            messages = [message for message in messages if _partition_of(message) not in unproven]
        by_partition: dict[Any, list[Message]] = {}
        events: list[Message] = []
        for message in messages:
            if message.error() is None:
                by_partition.setdefault((message.topic(), message.partition()), []).append(message)
            else:
                events.append(message)
        fetched = {
            TopicPartition(*tp): _fetched(of_one, headed=tp[0] in self._headed)
            for tp, of_one in by_partition.items()
        }
        for event in events:
            tp = _partition_of(event)
            fetched[tp] = _after(fetched.get(tp, Fetched([])), event)
        return fetched

    def _seek(self) -> set[TopicPartition]:
        """Have epochs checked, where the client can by now; returns the partitions where it could not."""
        for tp, proof in list(self._to_seek.items()):
            # What was fetched before is of a log that has proven nothing.
            self._waiting = [message for message in self._waiting if _partition_of(message) != tp]
            try:
                self._client.seek(KafkaTopicPartition(*tp, proof.offset, leader_epoch=proof.epoch))
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:
                    raise
            else:
                del self._to_seek[tp]
        return set(self._to_seek)

    def end_at_last_response(self, topic_partition: TopicPartition) -> int:
        """The high watermark of the newest response, so at or after that of the response with any record."""
        watermarks = self._client.get_watermark_offsets(KafkaTopicPartition(*topic_partition), cached=True)
        return max(0, watermarks[1]) if watermarks else 0

    def close(self, *, wait: bool = True) -> None:
        """Close the connections; with ``wait`` off, nothing is waited for that may take longer than a second."""
        if wait:
            close(self._client)
        else:
            close(self._client, patience_s=0)


def _partition_of(message: Message) -> TopicPartition:
    return TopicPartition(message.topic(), message.partition())  # type: ignore[arg-type]


def _fetched(messages: list[Any], *, headed: bool) -> Fetched:
    records = [
        (m.offset(), m.key(), m.value(), m.timestamp()[1], False)
        if m.headers() is None
        else record_with_headers(m.offset(), m.key(), m.value(), m.timestamp()[1], m.headers())
        for m in messages
    ]
    if headed:
        records = [_headed(record, m.headers() or ()) for record, m in zip(records, messages, strict=True)]
    return Fetched(
        records, records[-1][0] + 1, newest_epoch_ms=messages[-1].timestamp()[1], epochs=_epochs(messages)
    )


def _headed(record: Record, headers: Iterable[tuple[str, bytes | None]]) -> Record:
    offset, key, value, timestamp_ms, heartbeat = record
    if value is None or heartbeat:
        return record
    return offset, key, headed(value, headers), timestamp_ms, heartbeat


def _epochs(messages: list[Any]) -> tuple[EpochStart, ...]:
    """The leader epochs of messages in the order of their offsets; empty if the brokers do not say."""
    first, last = messages[0].leader_epoch(), messages[-1].leader_epoch()
    if first is None or first < 0:
        return ()
    if first == last:
        return (EpochStart(messages[0].offset(), first),)
    starts: list[EpochStart] = []
    for message in messages:
        epoch = message.leader_epoch()
        if not starts or epoch > starts[-1].epoch:
            starts.append(EpochStart(message.offset(), epoch))
    return tuple(starts)


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
