"""What a consumer makes of its brokers' answers, which are scripted: a leader that was replaced seldom answers."""

from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient, OffsetSpec

from forebay.log_epochs import EpochStart
from forebay.task_ids import TopicPartition
from forebay_changelog import Batch
from forebay_changelog.kafka import admin_polls, topic_states
from forebay_changelog.kafka import consumer as kafka_consumer
from forebay_changelog.kafka.consumer import KafkaConsumer
from forebay_changelog.kafka.fetcher import Fetched
from forebay_changelog.kafka.topics import TopicState

TP = TopicPartition("t", 0)


def answered(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


class Broker:
    """The leader of a partition, as an admin client and a fetcher see it."""

    def __init__(self) -> None:
        self.beginning, self.end, self.epoch = 0, 0, 0
        self.fetched: dict[TopicPartition, Fetched] = {}
        self.admin = SimpleNamespace(client=None)

    def ask_offsets(
        self,
        admin: AdminClient,
        partitions: list[TopicPartition],
        spec: OffsetSpec,
        level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, Future[Any]]:
        offset = self.beginning if spec is OffsetSpec.earliest() else self.end
        return {tp: answered(SimpleNamespace(offset=offset, leader_epoch=self.epoch)) for tp in partitions}

    def appends(self, begin: int, end: int, epoch: int) -> None:
        """Have records fetched that a leader of an epoch has appended."""
        records = [(offset, b"k", b"v", 1, False) for offset in range(begin, end)]
        self.fetched = {TP: Fetched(records, end, end, 1, epochs=(EpochStart(begin, epoch),))}

    def take(self, max_records: int) -> dict[TopicPartition, Fetched]:
        taken, self.fetched = self.fetched, {}
        return taken

    def end_at_last_response(self, topic_partition: TopicPartition) -> int:
        return 0

    def start(self, *_: Any) -> None:
        pass

    stop = wait = close = on_response = renew_if_silent = start


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(kafka_consumer, "ask_offsets", broker.ask_offsets)
    monkeypatch.setattr(topic_states, "ask_descriptions", lambda _, topics: {t: answered(None) for t in topics})
    monkeypatch.setattr(topic_states, "ask_configs", lambda _, topics: {t: answered(None) for t in topics})
    monkeypatch.setattr(topic_states, "config_values", lambda _: {})
    monkeypatch.setattr(topic_states, "topic_state", lambda *_: TopicState("id", 1, None, 0.0, deletes=False))
    return broker


@pytest.fixture
def consumer(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaConsumer]:
    for name in ("_END_INTERVAL_MS", "_BEGINNING_INTERVAL_MS"):
        monkeypatch.setattr(kafka_consumer, name, 0.0)
    consumer = KafkaConsumer(broker, lambda: broker)  # type: ignore[arg-type, return-value]
    consumer.assign(TP, 0)
    yield consumer
    consumer.close()


def polled(consumer: KafkaConsumer) -> list[Batch]:
    return [batch for _ in range(6) for batch in consumer.poll(1_000)]


def test_a_beginning_that_is_not_known_yet_is_none(broker: Broker, consumer: KafkaConsumer) -> None:
    """librdkafka answers -1001 for a partition that was just made: the next answer would rebuild a replica."""
    broker.beginning = -1001
    assert polled(consumer) == []
    broker.beginning = 0
    assert {batch.beginning for batch in polled(consumer)} == {0}


def test_a_beginning_that_is_not_known_yet_is_soon_requested_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read before it is known."""
    monkeypatch.setattr(kafka_consumer, "_END_INTERVAL_MS", 0.0)
    monkeypatch.setattr(kafka_consumer, "_BEGINNING_INTERVAL_MS", 1e9)
    monkeypatch.setattr(admin_polls, "_RETRY_INTERVAL_MS", 0.0)
    consumer = KafkaConsumer(broker, lambda: broker)  # type: ignore[arg-type, return-value]
    consumer.assign(TP, 0)
    broker.beginning = -1001
    polled(consumer)
    broker.beginning = 0
    assert {batch.beginning for batch in polled(consumer)} == {0}
    consumer.close()


def test_the_old_end_of_a_leader_that_was_replaced_is_none(broker: Broker, consumer: KafkaConsumer) -> None:
    """A replica that has read on would take its log for another one."""
    polled(consumer)
    broker.end, broker.epoch = 3, 4
    broker.appends(0, 3, epoch=4)
    assert polled(consumer)[-1].end.offset == 3
    broker.appends(3, 5, epoch=5)
    assert [batch.end.offset for batch in polled(consumer) if batch.end.offset < 5] == []
    broker.end, broker.epoch = 5, 5
    assert polled(consumer)[-1].end.offset == 5
    # The log itself has lost them.
    broker.end, broker.epoch = 4, 6
    assert polled(consumer)[-1].end.offset == 4
