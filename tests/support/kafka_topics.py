"""Topics of a test's own on a real broker, what is written to them, and what their readers get."""

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from confluent_kafka import IsolationLevel, Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, OffsetSpec

from forebay.log_epochs import OffsetAndEpoch
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog import Batch, Record, Wake
from forebay_changelog.kafka.changelog import KafkaChangelog
from tests.support.cluster import Cluster, wait_until


def spec(kind: str = "key-value", partitions: int = 1, **fields: object) -> StoreSpec:
    """A store on a topic that no other test has."""
    topic = f"t-{secrets.token_hex(4)}"
    return StoreSpec("s", kind, "string", "json", "murmur2", topic, partitions, **fields)  # type: ignore[arg-type]


def made(admin: AdminClient, store: StoreSpec, config: dict[str, str]) -> TopicPartition:
    """A topic made by hand; returns its only partition."""
    admin.create_topics([NewTopic(store.topic, store.partitions, config=config)])[store.topic].result(10)
    return TopicPartition(store.topic, 0)


def end_of_all(admin: AdminClient, tp: TopicPartition) -> int:
    """The end for readers of what is not committed, too."""
    wanted = {KafkaTopicPartition(*tp): OffsetSpec.latest()}
    futures = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    return int(next(iter(futures.values())).result(10).offset)


def configure(cluster: Cluster, store: str, **config: str) -> None:
    """Set configurations of a store's topic; their names have underscores for dots."""
    admin = AdminClient(cluster.changelog.kafka.librdkafka())
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    topic = cluster.topology.stores[store].topic
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(10)


@dataclass
class Writer:
    """A producer that sends one record after another, in order."""

    changelog: KafkaChangelog
    tp: TopicPartition
    transactional_id: str | None = None

    def __post_init__(self) -> None:
        own = {} if self.transactional_id is None else {"transactional_id": self.transactional_id}
        self.producer = Producer(self.changelog.kafka.librdkafka(linger_ms=0, **own))
        if self.transactional_id is not None:
            self.producer.init_transactions(10)

    def send(self, *rows: tuple[bytes, bytes | None], **fields: object) -> None:
        for key, value in rows:
            self.producer.produce(self.tp.topic, key=key, value=value, partition=self.tp.partition, **fields)
        assert self.producer.flush(10) == 0

    @contextlib.contextmanager
    def transaction(self, *, commit: bool) -> Iterator[None]:
        self.producer.begin_transaction()
        yield
        if commit:
            self.producer.commit_transaction(10)
        else:
            self.producer.abort_transaction(10)


@dataclass
class Reader:
    """A consumer, and everything it received."""

    changelog: KafkaChangelog
    tp: TopicPartition
    position: int = 0
    replay: bool = False
    proof: OffsetAndEpoch | None = None
    """The one to begin with, then that of the newest batch."""
    batches: list[Batch] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)
    """Requests for the log's end, whenever nothing was new."""

    def __enter__(self) -> "Reader":
        self.consumer = self.changelog.consumer(replay=self.replay)
        self.consumer.assign(self.tp, self.position, self.proof)
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()

    def poll(self, most: int = 1000) -> list[Batch]:
        self.consumer.wait(Wake(), 0.02)
        polled = self.consumer.poll(most)
        self.batches += polled
        for batch in polled:
            self.proof = batch.proof(self.proof)
        looked_boot_ms, current = self.consumer.current()
        self.looks += [looked_boot_ms] * (self.tp in current)
        return polled

    def poll_until(self, condition: Callable[[], object], what: str, most: int = 1000) -> None:
        wait_until(lambda: (self.poll(most) or self.batches) and condition(), what)

    def read(self, to: int, most: int = 1000) -> list[Record]:
        """Everything up to an offset."""
        self.poll_until(lambda: self.newest.position >= to, f"offset {to}", most)
        return self.records

    @property
    def newest(self) -> Batch:
        return self.batches[-1]

    @property
    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in batch.records]

    @property
    def values(self) -> list[bytes | None]:
        return [record[2] for record in self.records]
