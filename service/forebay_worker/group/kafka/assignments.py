"""The compacted topic with the group's newest assignment: new leaders start from it; large ones are sent through
it."""

from __future__ import annotations

import hashlib
import logging

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition

from forebay.errors import ChangelogUnreachable
from forebay_changelog.kafka.client_close import CLIENT_LOG, close
from forebay_changelog.kafka.topics import KafkaTopics, assignments_topic
from forebay_changelog.kafka.url import KafkaUrl
from forebay_worker.group.messages import AssignmentInfo, UnreadableMessage

log = logging.getLogger(__name__)

_DEADLINE_S = 5.0
_KEY = b"assignment"


class AssignmentTopic:
    """Reads and writes ``<application_id>-assignments``; raises ``ChangelogUnreachable``."""

    def __init__(self, url: KafkaUrl, application_id: str) -> None:
        self.name = assignments_topic(application_id)
        self._application_id = application_id
        self._url = url
        self._topics = KafkaTopics(url)

    def ensure(self) -> None:
        """Create the topic unless it is there."""
        self._topics.ensure_assignments(self._application_id)

    def write(self, raw: bytes) -> None:
        """Append an assignment and wait until the brokers have stored it."""
        producer = Producer(self._url.librdkafka(linger_ms=0, acks="all"), logger=CLIENT_LOG)
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failures.append(error)

        producer.produce(self.name, key=_KEY, value=raw, partition=0, on_delivery=delivered)
        if producer.flush(_DEADLINE_S) or failures:
            why = failures[0].str() if failures else "time-out"
            raise ChangelogUnreachable(f"The assignment could not be written to {self.name!r}: {why}.")

    def newest(self) -> AssignmentInfo | None:
        """The assignment of the highest generation that this version can read, None if there is none."""
        readable = []
        for raw in self._read():
            try:
                readable.append(AssignmentInfo.decode(raw))
            except UnreadableMessage as error:
                log.warning("the topic %r holds what is passed over: %s", self.name, error)
        # Of two of one generation the earlier was never adopted: its leader was deposed before it could be.
        return max(reversed(readable), key=lambda info: info.generation, default=None)

    def find(self, digest_to_find: str) -> bytes | None:
        """The assignment with that digest."""
        return next((raw for raw in self._read() if digest(raw) == digest_to_find), None)

    def _read(self) -> list[bytes]:
        consumer = Consumer(
            self._url.librdkafka(
                group_id="forebay",
                enable_auto_commit=False,
                enable_partition_eof=True,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                # Why ``check.crcs`` stays off: a damaged batch would be asked for for ever, and no group form.
                # Only an empty answer reveals the end, and members wait for it.
                fetch_wait_max_ms=10,
            ),
            logger=CLIENT_LOG,
        )
        found: list[bytes] = []
        try:
            # A request for the end makes the client look up the partition's leader at once instead of after half a
            # second.
            consumer.get_watermark_offsets(KafkaTopicPartition(self.name, 0), _DEADLINE_S)
            consumer.assign([KafkaTopicPartition(self.name, 0, OFFSET_BEGINNING)])
            while True:
                message = consumer.poll(_DEADLINE_S)
                if message is None:
                    raise ChangelogUnreachable(f"The topic {self.name!r} cannot be read: time-out.")
                error = message.error()
                if error is None:
                    found += [value for value in [message.value()] if isinstance(value, bytes)]
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
                elif not error.retriable():
                    raise ChangelogUnreachable(f"The topic {self.name!r} cannot be read: {error.str()}.")
        except KafkaException as error:
            raise ChangelogUnreachable(f"The topic {self.name!r} cannot be read: {error}.") from None
        finally:
            close(consumer)


def digest(raw: bytes) -> str:
    """A digest that identifies an assignment."""
    return hashlib.sha256(raw).hexdigest()[:32]
