"""The Kafka changelog: a cluster's topics as forebay's logs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from confluent_kafka import KafkaException

from forebay.errors import ChangelogError, ChangelogUnreachable
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog.base import CompactionLimits, Consumer, Heartbeat, Rows
from forebay_changelog.kafka.consumer import KafkaConsumer
from forebay_changelog.kafka.fetcher import Fetcher
from forebay_changelog.kafka.superseded_records import append_deletions, append_tombstones
from forebay_changelog.kafka.topics import KafkaTopics
from forebay_changelog.kafka.transactional_writer import BATCH_TIMEOUT_MS, TransactionalWriter
from forebay_changelog.kafka.transient_errors import passes
from forebay_changelog.kafka.url import KafkaUrl
from forebay_changelog.kafka.writer_ownership import has_completed, has_written, known_writers, last_heartbeats

_DELETION_DEADLINE_S = 30.0
_NO_LIMITS = CompactionLimits()
"""The brokers have their own."""


class KafkaChangelog:
    """The topics at a ``kafka://`` URL; the interface is ``Changelog``. Raises ``SettingError``."""

    compacted = "left to the brokers to remove"

    def __init__(self, url: str) -> None:
        self.url = url
        self.kafka = KafkaUrl.parse(url)
        self._topics = KafkaTopics(self.kafka)
        self._lock = threading.Lock()
        self._writers: dict[tuple[str, str], tuple[threading.Lock, dict[str, TransactionalWriter]]] = {}
        """By topic and writer: its lock, and the writers of all queries that wrote under that name."""
        self._partitions: dict[str, int] = {}

    def ensure(self, spec: StoreSpec, *, create: bool = True) -> None:
        self._topics.ensure(spec, create=create)

    def compactor(self, spec: StoreSpec) -> KafkaChangelog | None:
        """Itself for a store with ``latest_by``, since brokers do not know what an order is; else they do."""
        return None if spec.latest_by is None else self

    def identity(self, topic: str, partition: int | None = None) -> str:
        """The topic's id; raises ``TopicMissing`` and ``ChangelogUnreachable``."""
        return self._topics.describe(topic).identity

    def identities(self, topic: str) -> dict[int, str]:
        description = self._topics.describe(topic)
        return dict.fromkeys(range(description.partitions), description.identity)

    def consumer(self, *, replay: bool = False, headed: Collection[str] = ()) -> Consumer:
        return KafkaConsumer(self._topics, lambda: Fetcher(self.kafka, replay=replay, headed=headed))

    def end_offsets(self, topic_partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return self._topics.end_offsets(topic_partitions)

    def append_heartbeat(
        self,
        topic: str,
        *,
        writer: str,
        query_id: str,
        value: bytes,
        identities: Mapping[int, str] | None = None,
    ) -> dict[int, int]:
        """Append a heartbeat to every partition, none of which is lost alone; see ``Changelog``."""
        with self._writing(topic, writer, query_id) as writing:
            return writing.append(self._partitions[topic], value)

    def append_batch(
        self,
        topic: str,
        *,
        writer: str,
        query_id: str,
        batch_id: int | None,
        rows: Rows,
        heartbeat: bytes,
    ) -> dict[int, int]:
        """Append rows and a heartbeat to every partition in one transaction; see ``Changelog``."""
        with self._writing(topic, writer, query_id) as writing:
            writing.ensure_timeout(BATCH_TIMEOUT_MS)
            return writing.append(self._partitions[topic], heartbeat, rows)

    def last_heartbeat(self, topic: str, writer: str) -> Heartbeat | None:
        with _reading_heartbeats(topic, writer):
            return last_heartbeats(self.kafka, topic, writer, 1)[0]

    def last_heartbeats(self, topic: str, writer: str) -> list[Heartbeat | None]:
        with _reading_heartbeats(topic, writer):
            return last_heartbeats(self.kafka, topic, writer, self._topics.describe(topic).partitions)

    @contextlib.contextmanager
    def _writing(self, topic: str, writer: str, query_id: str) -> Iterator[TransactionalWriter]:
        """What a query writes heartbeats with under a name, while no other thread writes under it."""
        with self._lock:
            turn, queries = self._writers.setdefault((topic, writer), (threading.Lock(), {}))
        # A slow topic must not hold up the others.
        with turn:
            if topic not in self._partitions:
                self._partitions[topic] = self._topics.describe(topic).partitions
            if query_id not in queries:
                for earlier in queries.values():
                    earlier.supersede()
                queries[query_id] = TransactionalWriter(self.kafka, topic, writer, query_id)
            yield queries[query_id]

    def has_written(self, topic: str, *, writer: str, query_id: str) -> bool | None:
        with _reading_heartbeats(topic, writer):
            return has_written(self.kafka, topic, writer, query_id)

    def has_completed(self, topic: str, writer: str) -> bool:
        with _reading_heartbeats(topic, writer):
            return has_completed(self.kafka, topic, writer)

    def forget_expired(self, spec: StoreSpec) -> bool:
        """Set the topic's retention, unless it is set or the topic is not forebay's; see ``Changelog``."""
        return self._topics.set_retention(spec)

    def append_deletions(self, topic_partition: TopicPartition, keys: Sequence[tuple[bytes, int]]) -> int:
        try:
            _, next_offset = append_deletions(self.kafka, *topic_partition, keys)
        except KafkaException as error:
            why = error.args[0].str()
            raise ChangelogError(f"Nothing could be deleted from {topic_partition}: {why}.") from None
        return next_offset

    def ensure_group(self, application_id: str) -> str:
        """Create the topic of a worker group's assignments unless it is there; returns its name."""
        return self._topics.ensure_assignments(application_id)

    def writers(self, topic: str) -> set[str]:
        with _reading_heartbeats(topic, "all writers"):
            known = known_writers(self.kafka, topic, max_offsets=None)
        if known is None:
            raise ChangelogError(f"The topic {topic!r} may not be read, so its writers are not known: permit it.")
        return known

    def retire_writer(self, topic: str, writer: str, *, completed: bool = False) -> None:
        writing = TransactionalWriter(self.kafka, topic, writer, None, completed=completed)
        writing.append(self._topics.describe(topic).partitions, None)
        with self._lock:
            # What wrote under the name here is fenced now.
            self._writers.pop((topic, writer), None)

    def compact(
        self,
        spec: StoreSpec,
        limits: CompactionLimits = _NO_LIMITS,
        on_partition: Callable[[], None] = lambda: None,
    ) -> int:
        """Append tombstones for what a store with ``latest_by`` no longer needs; returns how many.

        The brokers compact by them. ``on_partition`` is called after each partition. Raises ``ChangelogError``.
        """
        appended, identity = 0, self.identity(spec.topic)
        for partition in range(spec.partitions):
            if self.identity(spec.topic) != identity:
                raise ChangelogError(f"The topic {spec.topic!r} was replaced while it was compacted; try again.")
            try:
                appended += append_tombstones(self.kafka, spec.topic, partition)
            except KafkaException as error:
                why = error.args[0].str()
                raise ChangelogError(
                    f"Partition {partition} of {spec.topic!r} could not be compacted: {why}. Try again later."
                ) from None
            on_partition()
        return appended

    def compacted_ms(self, topic: str) -> int | None:
        """Nothing tells: a second compaction finds nothing left to do."""
        return None

    def reset(self, spec: StoreSpec) -> str:
        """Delete a store's topic and recreate it: it gets a new topic id, so every replica is rebuilt."""
        before = self.identity(spec.topic)
        self._topics.delete(spec.topic)
        deadline = time.monotonic() + _DELETION_DEADLINE_S
        while True:
            # The cluster takes a moment to forget the old one.
            try:
                self._topics.ensure(spec)
                after = self.identity(spec.topic)
                if after != before:
                    return after
                why = "the old one still exists"
            except ChangelogError as error:
                why = str(error)
            if time.monotonic() > deadline:
                raise ChangelogError(f"The topic {spec.topic!r} could not be recreated: {why}")
            time.sleep(0.1)


def open_kafka(url: str, *, create: bool) -> KafkaChangelog:
    """The topics of a cluster, which is connected to only when it is needed; raises ``SettingError``."""
    return KafkaChangelog(url)


@contextlib.contextmanager
def _reading_heartbeats(topic: str, writer: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        kafka_error = error.args[0]
        message = f"The heartbeats of {writer!r} in {topic!r} could not be read: {kafka_error.str()}."
        raise (ChangelogUnreachable(message) if passes(kafka_error) else ChangelogError(message)) from None
