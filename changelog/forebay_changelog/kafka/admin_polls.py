"""Requests about topics, and those that a consumer repeats to know its log: sent when due, never waited for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from forebay.clock import boot_ms
from forebay.task_ids import TopicPartition
from forebay_changelog.kafka.client_close import Admin

if TYPE_CHECKING:
    from forebay_changelog.kafka.topics import KafkaTopics

log = logging.getLogger(__name__)

_RETRY_INTERVAL_MS = 1_000.0
_TIMEOUT_S = 3.0
_OFFSETS_TIMEOUT_S = 2.0


def ask_offsets(
    admin: AdminClient,
    topic_partitions: list[TopicPartition],
    spec: OffsetSpec,
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[TopicPartition, Future[Any]]:
    """Request offsets, by default as read-committed readers see them."""
    if not topic_partitions:
        return {}
    wanted = {KafkaTopicPartition(*tp): spec for tp in topic_partitions}
    futures = admin.list_offsets(wanted, isolation_level=isolation_level, request_timeout=_OFFSETS_TIMEOUT_S)
    return {TopicPartition(tp.topic, tp.partition): future for tp, future in futures.items()}


def ask_descriptions(admin: AdminClient, topics: list[str]) -> dict[str, Future[Any]]:
    """Request the ids and partitions of topics."""
    futures: dict[str, Future[Any]] = admin.describe_topics(TopicCollection(topics), request_timeout=_TIMEOUT_S)
    return futures


def ask_configs(admin: AdminClient, topics: list[str]) -> dict[str, Future[Any]]:
    """Request the configurations of topics."""
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    futures = admin.describe_configs(resources, request_timeout=_TIMEOUT_S)
    return {resource.name: future for resource, future in futures.items()}


@dataclass
class AdminPoll:
    """A request that is repeated, one at a time, and never waited for."""

    interval_ms: float
    ask: Callable[[AdminClient], dict[Any, Future[Any]]]
    sent_boot_ms: float = float("-inf")
    at_once: bool = False
    failed: bool = False
    """Whether any answer to the last request was an error; it is then repeated soon."""
    answered: bool = False
    """Whether the brokers answered since that was last reset."""
    errors: dict[Any, KafkaError] = field(default_factory=dict)
    """What the newest answers say that are errors."""
    _futures: dict[Any, Future[Any]] = field(default_factory=dict)

    def abandon(self) -> None:
        """Expect no answer to the last request any more."""
        self._futures = {}
        self.failed = True

    def send_if_due(self, admin: AdminClient, now_boot_ms: float) -> None:
        interval_ms = min(self.interval_ms, _RETRY_INTERVAL_MS) if self.failed else self.interval_ms
        if self._futures or not (self.at_once or now_boot_ms - self.sent_boot_ms >= interval_ms):
            return
        self.at_once, self.failed, self.sent_boot_ms = False, False, now_boot_ms
        try:
            self._futures = self.ask(admin)
        except KafkaException as error:
            self.failed = True
            log.debug("a request about the log failed: %s", error)

    def answers(self) -> Iterator[tuple[Any, Any]]:
        """The answers so far; failed requests have none, so that the information grows old."""
        for about, future in list(self._futures.items()):
            if future.done():
                del self._futures[about]
                error = future.exception()
                if error is None:
                    self.answered = True
                    self.errors.pop(about, None)
                    yield about, future.result()
                else:
                    self.failed = True
                    if isinstance(error, KafkaException):
                        self.errors[about] = error.args[0]


class AdminPolls:
    """Questions to one admin client, which is replaced if it answers none of them for too long."""

    def __init__(self, topics: KafkaTopics, *questions: AdminPoll) -> None:
        self._topics = topics
        self._questions = questions
        self._polled_admin: Admin | None = None
        self._refusal: str | None = None
        """Why no client could be made at the last attempt."""

    def send_due(self) -> None:
        """Send those that are due."""
        if any(question.answered for question in self._questions):
            self._topics.on_response()
            for question in self._questions:
                question.answered = False
        else:
            self._topics.renew_if_silent()
        now = boot_ms()
        try:
            admin = self._topics.admin
        except KafkaException as error:
            # Such as a certificate that is just being replaced.
            if str(error) != self._refusal:
                log.error("the logs' ends cannot be requested: %s", error)
            self._refusal = str(error)
            return
        self._refusal = None
        if admin is not self._polled_admin:
            # Requests to another client may never be answered.
            for question in self._questions:
                question.abandon()
            self._polled_admin = admin
        for question in self._questions:
            question.send_if_due(admin.client, now)
