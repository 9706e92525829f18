"""The writer's side of a Kafka log: transactions, some of them aborted, some open for a while."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from examples.broker import BEGINNINGS_PUT_DOWN_MS
from forebay.clock import boot_ms, epoch_ms
from forebay.errors import TopicMissing
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay.topology import Topology
from forebay_changelog import Heartbeat
from forebay_changelog.kafka.changelog import KafkaChangelog
from forebay_changelog.kafka.transient_errors import passes
from forebay_changelog.record_headers import HEARTBEAT_HEADER, heartbeat_key
from tests.chaos.history import Finding, Record
from tests.chaos.writer import Row, log_row

ABORTED = 0.1
"""The share of transactions that are aborted."""
HELD_OPEN = 0.03
LONGEST_OPEN_S = 1.5
MIN_COMPACTION_LAG_MS = 2_000
_COMPACTED = {
    # Only where a policy deletes do brokers remove records on request; by itself nothing goes.
    "cleanup.policy": "compact,delete",
    "retention.ms": "-1",
    "min.compaction.lag.ms": str(MIN_COMPACTION_LAG_MS),
    "max.compaction.lag.ms": "4000",
    "segment.ms": "3000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "60000",
}
_TIMEOUT_S = 60.0
_ONCE_S = 5.0
_RETRY_S = 0.1
T = TypeVar("T")


def create_topics(changelog: KafkaChangelog, topology: Topology) -> None:
    """Create the stores' topics; those of key-value stores are compacted all the time."""
    admin = AdminClient(changelog.kafka.librdkafka())
    topics = [
        NewTopic(spec.topic, num_partitions=spec.partitions, config=dict(_COMPACTED))
        for spec in topology.stores.values()
        if spec.kind == "key-value" and spec.ttl_ms is None
    ]
    for future in admin.create_topics(topics).values():
        future.result(_TIMEOUT_S)
    for spec in topology.stores.values():
        _insist(functools.partial(changelog.ensure, spec))


class KafkaWriter:
    """Each batch is a transaction with a heartbeat to every partition."""

    def __init__(self, changelog: KafkaChangelog, seed: int, on_finding: Callable[[Finding], None]) -> None:
        self._changelog = changelog
        self._chooser = random.Random(seed)
        self._on_finding = on_finding
        self._producers: dict[str, Producer] = {}
        self._batch = 0
        self._unproven: set[str] = set()
        """Stores to which no producer has committed anything since the log was cut."""

    def write(self, spec: StoreSpec, rows: Mapping[int, list[Row]], generated_ms: float) -> list[Record]:
        self._batch += 1
        producer = self._producer(spec)
        written: list[Record] = []
        producer.begin_transaction()
        for partition, some in rows.items():
            for row in some:
                self._produce(producer, spec, partition, row, generated_ms, written)
        beat = Heartbeat(int(epoch_ms()), "q", self._batch).value()
        for partition in range(spec.partitions):
            producer.produce(
                spec.topic, beat, heartbeat_key(spec.name), partition, headers=[(HEARTBEAT_HEADER, b"")]
            )
        return self._end(spec.name, producer, written)

    def end(self, tp: TopicPartition) -> int:
        """A partition's end once nothing is open: a commit returns before its markers are in the log."""
        levels = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        limit = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < limit:
            committed, written = (self._end_at(tp, level) for level in levels)
            if committed == written:
                return written
        raise TimeoutError(f"{tp} has an open transaction")

    def _end_at(self, tp: TopicPartition, level: IsolationLevel) -> int:
        admin = AdminClient(self._changelog.kafka.librdkafka())

        def found() -> int:
            wanted = {KafkaTopicPartition(*tp): OffsetSpec.latest()}
            (offset,) = admin.list_offsets(wanted, isolation_level=level).values()
            return int(offset.result(_TIMEOUT_S).offset)

        return _insist(found)

    def move_beginning(self, tp: TopicPartition, beginning: int) -> None:
        """Have the brokers remove a partition's records before an offset."""
        admin = AdminClient(self._changelog.kafka.librdkafka())

        def remove() -> None:
            (removed,) = admin.delete_records([KafkaTopicPartition(*tp, beginning)]).values()
            removed.result(_TIMEOUT_S)

        _insist(remove)
        # A broker that is killed before it has put a beginning down has the former one again.
        time.sleep(2 * BEGINNINGS_PUT_DOWN_MS / 1000)

    def add_partition(self, spec: StoreSpec) -> None:
        """Have a store's topic of one partition more than it was created with."""
        admin = AdminClient(self._changelog.kafka.librdkafka())
        wanted = NewPartitions(spec.topic, spec.partitions + 1)
        _insist(lambda: admin.create_partitions([wanted])[spec.topic].result(_TIMEOUT_S))

    def renew(self) -> None:
        """Write with new producers: what they know of a log's end may have been lost."""
        self._unproven = {*self._producers}
        self._producers.clear()

    def _produce(
        self, producer: Producer, spec: StoreSpec, partition: int, row: Row, generated_ms: float, to: list[Record]
    ) -> None:
        key, value, timestamp_ms = log_row(spec, row)
        began_ms = boot_ms()

        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None:
                to.append(Record(spec.name, partition, offset, *row, generated_ms, began_ms, boot_ms(), None))

        producer.produce(spec.topic, value, key, partition, on_delivery=delivered, timestamp=timestamp_ms)

    def _end(self, store: str, producer: Producer, written: list[Record]) -> list[Record]:
        """Commit or abort; returns the records as they ended.

        The first batch after a cut is committed: a position whose place only aborted records have is not
        known to be lost (docs/kafka.md).
        """
        if self._chooser.random() < HELD_OPEN:
            producer.flush(_TIMEOUT_S)
            time.sleep(self._chooser.uniform(0, LONGEST_OPEN_S))
        if self._chooser.random() < ABORTED and store not in self._unproven:
            producer.flush(_TIMEOUT_S)
            _insist(lambda: producer.abort_transaction(_ONCE_S))
            self._on_finding(Finding("abort", f"{len(written)} records", boot_ms()))
            return written
        try:
            _insist(lambda: producer.commit_transaction(_ONCE_S))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            _insist(lambda: producer.abort_transaction(_ONCE_S))
            return written
        committed_ms = boot_ms()
        self._unproven.discard(store)
        return [Record(**{**vars(record), "committed_ms": committed_ms}) for record in written]

    def _producer(self, spec: StoreSpec) -> Producer:
        if spec.name not in self._producers:
            options: dict[str, Any] = {"transactional_id": f"chaos-{spec.topic}", "linger_ms": 0}
            options |= {"transaction_timeout_ms": 60_000, "message_timeout_ms": 60_000}
            producer = Producer(self._changelog.kafka.librdkafka(**options))
            _insist(lambda: producer.init_transactions(_ONCE_S))
            self._producers[spec.name] = producer
        return self._producers[spec.name]


def _insist(action: Callable[[], T]) -> T:
    """Repeat what may be repeated, until its outcome is known; raises ``KafkaException`` if that is a failure, and
    ``TopicMissing``."""
    end = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return action()
        except TopicMissing:
            # A broker that makes many partitions knows of the next topic late.
            if time.monotonic() > end:
                raise
        except KafkaException as error:
            cause = error.args[0]
            if cause.txn_requires_abort() or not passes(cause) or time.monotonic() > end:
                raise
            time.sleep(_RETRY_S)
