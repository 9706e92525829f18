"""Writes to Kafka in transactions with the writer's id: a second writer of that name fences the first."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from forebay.clock import boot_ms
from forebay.errors import BatchConflict, ChangelogError, ChangelogUnreachable
from forebay_changelog.base import Rows, unknown_writer
from forebay_changelog.kafka.client_close import CLIENT_LOG, destroy_elsewhere
from forebay_changelog.kafka.transient_errors import passes
from forebay_changelog.kafka.url import KafkaUrl
from forebay_changelog.kafka.writer_ownership import known_writers, take_ownership
from forebay_changelog.record_headers import COMPLETED_HEADER, HEARTBEAT_HEADER, heartbeat_key, superseded

_TIMEOUT_S = 10.0
_TRANSACTION_TIMEOUT_MS = 10_000
BATCH_TIMEOUT_MS = 120_000
"""For transactions that have rows, too. One that its writer leaves open holds back readers for as long."""
_QUEUE_FULL_S = 0.1
_MAX_SOCKET_TIMEOUT_MS = 60_000
_FENCED = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})


class TransactionalWriter:
    """Appends one writer's heartbeats to every partition of a topic, all or none, and rows before them.

    The first heartbeat fences an earlier ``TransactionalWriter`` of the same topic and writer, whose next one
    raises ``BatchConflict``. So does the first heartbeat of a query that another superseded, even after a restart,
    since the topic records that. ``query_id`` is None if it only retires the writer, as ``completed`` if that has
    written all that it had to.
    """

    def __init__(
        self,
        url: KafkaUrl,
        topic: str,
        writer: str,
        query_id: str | None,
        *,
        completed: bool = False,
    ) -> None:
        self._timeout_ms = _TRANSACTION_TIMEOUT_MS
        self._topic = topic
        self._writer = writer
        self._query_id = query_id
        self._headers: list[tuple[str, str | bytes | None]] = [(HEARTBEAT_HEADER, b"")]
        if completed:
            self._headers.append((COMPLETED_HEADER, b""))
        self._producer: Producer | None = None
        self._url = url
        self._superseded: BatchConflict | None = None

    def append(self, partitions: int, value: bytes | None, rows: Rows = MappingProxyType({})) -> dict[int, int]:
        """Append rows and a heartbeat, or with None a tombstone that retires the writer; returns each partition's
        next offset.

        Raises ``BatchConflict`` and ``ChangelogError``.
        """
        if self._superseded is not None:
            raise self._superseded
        ends: dict[int, int] = {}
        failures: list[KafkaError] = []

        def undelivered(error: Any, message: Message) -> None:
            if error is not None:
                failures.append(error)

        def delivered(error: Any, message: Message) -> None:
            undelivered(error, message)
            if error is None:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                ends[partition] = offset + 1

        begun_boot_ms = float("inf")
        try:
            producer = self._opened()
            begun_boot_ms = boot_ms()
            producer.begin_transaction()
            for partition, pairs in rows.items():
                for key, row in pairs:
                    self._produce(key=key, value=row, partition=partition, on_delivery=undelivered)
                    if failures:
                        raise KafkaException(failures[0])
            for partition in range(partitions):
                self._produce(
                    key=heartbeat_key(self._writer),
                    value=value,
                    partition=partition,
                    headers=self._headers,
                    on_delivery=delivered,
                )
            producer.commit_transaction(self._timeout_ms / 1000)
        except KafkaException as error:
            kafka_error, took_ms = failures[0] if failures else error.args[0], boot_ms() - begun_boot_ms
            if kafka_error.code() == KafkaError._FATAL:
                kafka_error = self._reason_of_fatal(kafka_error)
            self.close()
            raise self._translated(kafka_error, took_ms) from None
        return ends

    def ensure_timeout(self, timeout_ms: int) -> None:
        """Give transactions at least this long, from the next one on."""
        if self._timeout_ms < timeout_ms:
            self._timeout_ms = timeout_ms
            self.close()

    def _reason_of_fatal(self, kafka_error: KafkaError) -> KafkaError:
        """Why nothing more can be produced: only what concerns the transaction says so."""
        assert self._producer is not None
        try:
            self._producer.abort_transaction(_TIMEOUT_S)
        except KafkaException as error:
            kafka_error = error.args[0]
        return kafka_error

    def _produce(self, **message: Any) -> None:
        """Queue a message; waits while the queue is full. Raises ``KafkaException``."""
        assert self._producer is not None
        while True:
            try:
                return self._producer.produce(self._topic, **message)
            except BufferError:
                self._producer.poll(_QUEUE_FULL_S)

    def __del__(self) -> None:
        destroy_elsewhere([self.__dict__.pop("_producer", None)])

    def supersede(self) -> BatchConflict:
        """Refuse all further heartbeats: claiming the name again would only fence the other query."""
        self.close()
        reason = superseded(self._writer, str(self._query_id))
        self._superseded = BatchConflict(f"{self._topic}: {reason}")
        return self._superseded

    def close(self) -> None:
        """Close the connection; what was not committed is aborted by the next writer or by time-out."""
        self._producer = None

    def _opened(self) -> Producer:
        if self._producer is None:
            self._claim()
            producer = Producer(
                self._url.librdkafka(
                    transactional_id=f"forebay-{self._topic}-{self._writer}",
                    transaction_timeout_ms=self._timeout_ms,
                    # Not the URL's: none may be longer than a transaction.
                    message_timeout_ms=self._timeout_ms,
                    delivery_timeout_ms=self._timeout_ms,
                    socket_timeout_ms=min(self._timeout_ms, _MAX_SOCKET_TIMEOUT_MS),
                    linger_ms=0,
                ),
                logger=CLIENT_LOG,
            )
            producer.init_transactions(_TIMEOUT_S)
            self._producer = producer
        return self._producer

    def _claim(self) -> None:
        if self._query_id is None:
            known = known_writers(self._url, self._topic)
            if known is not None and self._writer not in known:
                raise unknown_writer(self._topic, self._writer, known)
            return
        own = take_ownership(self._url, self._topic, self._writer, self._query_id)
        if own is None:
            raise self.supersede()
        self._headers = [(HEARTBEAT_HEADER, b""), own.header()]

    def _translated(self, kafka_error: KafkaError, took_ms: float) -> ChangelogError:
        if kafka_error.code() in _FENCED:
            if took_ms < self._timeout_ms:
                return self.supersede()
            # The process was paused, and the brokers ended the transaction themselves. The next heartbeat claims
            # the name again, which shows whether another query took it meanwhile.
            return ChangelogUnreachable(f"A write of {self._writer!r} took {took_ms:.0f} ms and was aborted.")
        message = f"{self._writer!r} could not write to {self._topic!r}: {kafka_error.str()}."
        return ChangelogUnreachable(message) if passes(kafka_error) else ChangelogError(message)
