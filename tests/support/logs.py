"""The logs that test clusters write to: a SQLite changelog, or topics of a real Kafka broker."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from confluent_kafka import Producer

from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog import Changelog, Heartbeat
from forebay_changelog.kafka.changelog import KafkaChangelog
from forebay_changelog.kafka.client_close import destroy_elsewhere
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite.changelog import SqliteChangelog

Row = tuple[bytes, bytes | None, int]
"""Key, value (None deletes) and timestamp in epoch ms."""


class Log(Protocol):
    changelog: Changelog

    def append(
        self, spec: StoreSpec, rows: Mapping[int, Sequence[Row]], writer: str, batch: int
    ) -> dict[int, int]:
        """Append rows by partition, then a heartbeat to every partition; returns the end of each."""
        ...


class SqliteLog:
    def __init__(self, changelog: SqliteChangelog) -> None:
        self.changelog = changelog

    def append(
        self, spec: StoreSpec, rows: Mapping[int, Sequence[Row]], writer: str, batch: int
    ) -> dict[int, int]:
        self.append_rows(spec, rows, writer, batch)
        return _beat(self.changelog, spec, writer, batch)

    def append_rows(self, spec: StoreSpec, rows: Mapping[int, Sequence[Row]], writer: str, batch: int) -> None:
        """Append rows alone."""
        for partition, items in rows.items():
            sqlite_batches.append_batch(
                self.changelog.path(TopicPartition(spec.topic, partition)),
                items,
                writer=writer,
                query_id="q",
                batch_id=batch,
                write_name=spec.name,
            )


class KafkaLog:
    def __init__(self, changelog: KafkaChangelog) -> None:
        self.changelog = changelog
        self._producer: Producer | None = None

    def __del__(self) -> None:
        # The garbage collector may be at work in one of its threads.
        destroy_elsewhere([self.__dict__.pop("_producer", None)])

    def append(
        self, spec: StoreSpec, rows: Mapping[int, Sequence[Row]], writer: str, batch: int
    ) -> dict[int, int]:
        self.append_rows(spec, rows)
        return _beat(self.changelog, spec, writer, batch)

    def append_rows(
        self, spec: StoreSpec, rows: Mapping[int, Sequence[Row]], writer: str = "", batch: int = 0
    ) -> None:
        """Append rows alone, and wait until the brokers have them."""
        if self._producer is None:
            self._producer = Producer(self.changelog.kafka.librdkafka(linger_ms=1))
        for partition, items in rows.items():
            for produced, (key, value, timestamp_ms) in enumerate(items, 1):
                self._producer.produce(
                    spec.topic, key=key, value=value, partition=partition, timestamp=timestamp_ms
                )
                if produced % 50_000 == 0:
                    self._producer.flush()
        assert self._producer.flush(60) == 0


def _beat(changelog: Changelog, spec: StoreSpec, writer: str, batch: int) -> dict[int, int]:
    value = Heartbeat(int(time.time() * 1000), "q", batch).value()
    return changelog.append_heartbeat(spec.topic, writer=writer, query_id="q", value=value)
