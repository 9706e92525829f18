"""Reads partitions of Kafka topics, and keeps checking their ends and topic ids.

librdkafka fetches in threads of its own, outside Python's lock. It delivers records; a partition's position past
transaction markers, aborted records and compacted ones comes from end-of-partition events.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from forebay.changelog.base import Batch, Record
from forebay.changelog.kafka.client_log import CLIENT_LOG
from forebay.changelog.kafka.topics import (
    KafkaTopics,
    TopicState,
    ask_configs,
    ask_descriptions,
    ask_offsets,
    config_values,
    topic_state,
)
from forebay.changelog.kafka.url import KafkaUrl
from forebay.changelog.record_headers import HEARTBEAT_HEADER, VALID_FROM_HEADER
from forebay.changelog.sqlite.partition import heartbeat_key
from forebay.changelog.wake import Wake
from forebay.clock import boot_ms, epoch_ms
from forebay.lag import EndOffset
from forebay.tasks import TopicPartition

log = logging.getLogger(__name__)

_END_INTERVAL_MS = 100.0
_ENDS_AT_ONCE = 250
"""How many known ends are refreshed at a time: each costs Python 20 us, so this is a twentieth of a core."""
_BEGINNING_INTERVAL_MS = 30_000.0
_DESCRIPTION_INTERVAL_MS = 1_000.0
_CONFIG_INTERVAL_MS = 60_000.0
_RETRY_INTERVAL_MS = 1_000.0
_MOST_AT_ONCE = 2_000
"""Records of all partitions in one poll, unless a single partition may have more."""
_PROVEN_YOUNG = 0.9
"""Clocks differ: records count as too young for compaction up to this fraction of the topic's lag."""
_HEARTBEATS = heartbeat_key("")
_LASTING = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError._BAD_MSG,
        KafkaError._BAD_COMPRESSION,
        KafkaError._NOT_IMPLEMENTED,
    }
)
"""Errors that do not go away by themselves."""


@dataclass
class _Assigned:
    position: int
    since_boot_ms: float
    """When the position was reached: only an end observed after that can contradict it."""
    end: EndOffset | None = None
    beginning: int | None = None
    newest_epoch_ms: int = 0
    """The largest record timestamp read: compaction never touched what follows a young record."""
    lost: bool = False
    """The position is not in the log."""
    at_end: bool = False
    """Whether the last batch reached the end that was last observed."""


@dataclass
class _Question:
    """A request that is repeated, one at a time, and never waited for."""

    interval_ms: float
    ask: Callable[[AdminClient], dict[Any, Future[Any]]]
    sent_boot_ms: float = float("-inf")
    at_once: bool = False
    failed: bool = False
    """Whether any answer to the last request was an error; it is then repeated soon."""
    answered: bool = False
    """Whether the brokers answered since that was last reset."""
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
                if future.exception() is None:
                    self.answered = True
                    yield about, future.result()
                else:
                    self.failed = True


class KafkaConsumer:
    """The consumer of a Kafka changelog; for a ``replay`` it reads further ahead."""

    def __init__(self, url: KafkaUrl, topics: KafkaTopics, *, replay: bool = False) -> None:
        self._url = url
        self._topics = topics
        self._replay = replay
        self._client = self._new_client()
        self._assigned: dict[TopicPartition, _Assigned] = {}
        self._not_fetched: set[TopicPartition] = set()
        self._news: set[TopicPartition] = set()
        """Those with newer information than in ``_current``."""
        self._current: list[TopicPartition] = []
        """Those whose end was unchanged, and had been reached, at the last request."""
        self._current_boot_ms = 0.0
        self._descriptions: dict[str, Any] = {}
        self._configs: dict[str, dict[str, str]] = {}
        self._states: dict[str, TopicState] = {}
        self._lag_since_epoch_ms: dict[str, float] = {}
        """Since when a topic is known to have had at least its present ``min.compaction.lag.ms``."""
        self._waiting: list[Message] = []
        self._asked: AdminClient | None = None
        self._told: set[tuple[TopicPartition, int]] = set()
        self._to_ask: list[TopicPartition] = []
        self._ends = _Question(
            _END_INTERVAL_MS, lambda admin: ask_offsets(admin, self._ends_to_ask(), OffsetSpec.latest())
        )
        self._beginnings = _Question(
            _BEGINNING_INTERVAL_MS, lambda admin: ask_offsets(admin, list(self._assigned), OffsetSpec.earliest())
        )
        self._describing = _Question(
            _DESCRIPTION_INTERVAL_MS, lambda admin: ask_descriptions(admin, self._topic_names())
        )
        self._configuring = _Question(_CONFIG_INTERVAL_MS, lambda admin: ask_configs(admin, self._topic_names()))

    def _new_client(self) -> Consumer:
        return Consumer(
            self._url.librdkafka(
                group_id="forebay",
                enable_auto_commit=False,
                isolation_level="read_committed",
                enable_partition_eof=True,
                auto_offset_reset="error",
                allow_auto_create_topics=False,
                # By default it pauses for a second once its queue is full, which costs most of the speed.
                fetch_queue_backoff_ms=2,
                queued_min_messages=1_000_000 if self._replay else 100_000,
                queued_max_messages_kbytes=65_536,
                # A position passes transaction markers only after this long without records. Until then they count
                # as lag, a replay is not at its end, and where compaction may have reached, nothing is consistent.
                fetch_wait_max_ms=10 if self._replay else 25,
            ),
            logger=CLIENT_LOG,
        )

    def _renew_client(self) -> None:
        """Start again with a client that has never seen the replaced topic.

        librdkafka ignores metadata with a leader epoch below one that it saw before, and a recreated topic starts
        at epoch 0: the old client would wait for ever.
        """
        self._client.close()
        self._client = self._new_client()
        self._waiting = []
        self._not_fetched.update(self._assigned)

    def assign(self, topic_partition: TopicPartition, position: int) -> None:
        """Read a partition from this position on, once its topic is known."""
        self.unassign(topic_partition)
        self._assigned[topic_partition] = _Assigned(position, boot_ms())
        self._not_fetched.add(topic_partition)
        self._ends.at_once = self._beginnings.at_once = True
        if topic_partition.topic not in self._states:
            self._describing.at_once = self._configuring.at_once = True

    def unassign(self, topic_partition: TopicPartition) -> None:
        """Stop reading a partition."""
        if self._assigned.pop(topic_partition, None) is None:
            return
        self._stop_fetching(topic_partition)
        self._not_fetched.discard(topic_partition)
        self._news.discard(topic_partition)

    def close(self) -> None:
        """Close the connections."""
        self._assigned.clear()
        self._client.close()

    def wait(self, wake: Wake, timeout_s: float) -> None:
        """Return when something may be new, when ``wake`` is set, or after the time-out at the latest."""
        if not wake.is_set() and not self._waiting:
            self._waiting = self._client.consume(1, timeout_s)

    def poll(self, max_records: int) -> list[Batch]:
        """What is new, and the ends that were observed meanwhile.

        librdkafka cannot limit each partition, so the limits of all partitions together apply.
        """
        self._take_answers()
        self._fetch_more()
        self._ask_what_is_due()
        of_all = min(max_records * len(self._assigned), max(max_records, _MOST_AT_ONCE))
        messages = self._waiting + self._client.consume(of_all, 0)
        self._waiting = []
        events = [message for message in messages if message.error() is not None]
        reached: dict[TopicPartition, int] = {}
        for event in events:
            self._take_event(_partition_of(event), event, reached)
        if events:
            messages = [message for message in messages if message.error() is None]
        by_partition = self._by_partition(messages)
        changed = (by_partition.keys() | reached.keys() | self._news) & self._assigned.keys()
        self._news.clear()
        batches = (self._batch(tp, by_partition.get(tp, []), reached.get(tp, 0)) for tp in sorted(changed))
        return [batch for batch in batches if batch is not None]

    def current(self) -> tuple[float, list[TopicPartition]]:
        """When ends were last requested, and the partitions whose last batch had reached their end."""
        current, self._current = self._current, []
        return self._current_boot_ms, [tp for tp in current if tp in self._assigned and tp not in self._news]

    def _by_partition(self, messages: list[Message]) -> dict[TopicPartition, list[Message]]:
        if messages and len(self._assigned) == 1:
            # A replay reads one partition: its millions of records need not be separated.
            (only,) = self._assigned
            if _partition_of(messages[0]) == _partition_of(messages[-1]) == only:
                return {only: messages}
        found: dict[TopicPartition, list[Message]] = {}
        for message in messages:
            found.setdefault(_partition_of(message), []).append(message)
        return found

    def _take_event(self, tp: TopicPartition, event: Message, reached: dict[TopicPartition, int]) -> None:
        error = event.error()
        if error is None or tp not in self._assigned:
            return
        if error.code() == KafkaError._PARTITION_EOF:
            reached[tp] = event.offset() or 0
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            # The next request for both ends will show on which side of the log it is.
            assigned = self._assigned[tp]
            self._stop_fetching(tp)
            assigned.lost, assigned.since_boot_ms = True, boot_ms()
            assigned.end = assigned.beginning = None
            self._ends.at_once = self._beginnings.at_once = self._describing.at_once = True
        else:
            if error.code() not in _LASTING:
                log.debug("%s: %s", tp, error)
            elif (tp, error.code()) not in self._told:
                self._told.add((tp, error.code()))
                log.error("%s cannot be read: %s", tp, error.str())
            self._describing.at_once = True

    def _batch(self, tp: TopicPartition, messages: list[Message], reached: int) -> Batch | None:
        assigned, state = self._assigned[tp], self._states.get(tp.topic)
        if assigned.end is None or assigned.beginning is None or state is None:
            return None
        records = _records(messages)
        before = assigned.position
        after = max(before, reached, records[-1][0] + 1 if records else 0)
        young = _young(assigned.newest_epoch_ms, state, self._lag_since_epoch_ms.get(tp.topic, float("inf")))
        gap = after - before != len(records) and not young
        if after != before:
            assigned.position, assigned.since_boot_ms = after, boot_ms()
            if messages:
                assigned.newest_epoch_ms = max(assigned.newest_epoch_ms, messages[-1].timestamp()[1])
        end = assigned.end
        if end.sent_boot_ms < assigned.since_boot_ms:
            end = end._replace(offset=max(end.offset, after))
        if gap:
            end = end._replace(offset=max(end.offset, self._end_at_last_response(tp)))
        floor = assigned.beginning if assigned.lost else 0
        # If nothing was read yet, nothing was missed: the log has only dropped its beginning meanwhile.
        if assigned.lost and (before == 0 or floor <= before <= end.offset):
            assigned.lost = False
        assigned.at_end = after == end.offset and not assigned.lost
        return Batch(
            tp,
            records,
            after,
            gap,
            end,
            assigned.beginning,
            floor,
            state.identity,
            state.tombstone_life_ms,
            state.partitions,
            # The cleaner never passes the last stable offset, which is where a partition ends for a reader.
            end_reached=bool(reached) and reached == after,
        )

    def _end_at_last_response(self, tp: TopicPartition) -> int:
        """The high watermark of the newest response, so at or after that of the response with the gap."""
        watermarks = self._client.get_watermark_offsets(KafkaTopicPartition(*tp), cached=True)
        return max(0, watermarks[1]) if watermarks else 0

    def _take_answers(self) -> None:
        for tp, found in self._ends.answers():
            assigned = self._assigned.get(tp)
            if assigned is not None and found.offset >= 0 and _counts(self._ends, assigned, assigned.end):
                self._take_end(tp, assigned, EndOffset(found.offset, self._ends.sent_boot_ms))
        # A topic that is being replaced has no end for a moment.
        if self._ends.failed and self._describing.sent_boot_ms < self._ends.sent_boot_ms:
            self._describing.at_once = True
        for tp, found in self._beginnings.answers():
            assigned = self._assigned.get(tp)
            if assigned is not None and _counts(self._beginnings, assigned, assigned.beginning):
                assigned.beginning = found.offset
                self._news.add(tp)
        self._descriptions |= self._describing.answers()
        self._configs |= ((topic, config_values(found)) for topic, found in self._configuring.answers())
        replaced = False
        for topic in self._descriptions.keys() & self._configs.keys():
            state = topic_state(self._descriptions.pop(topic), self._configs[topic])
            known = self._states.get(topic)
            if state != known:
                self._states[topic] = state
                another = known is not None and known.identity != state.identity
                if known is None or another or known.min_compaction_lag_ms < state.min_compaction_lag_ms:
                    self._lag_since_epoch_ms[topic] = epoch_ms()
                replaced |= another
                self._news.update(tp for tp in self._assigned if tp.topic == topic)
        if replaced:
            self._renew_client()

    def _take_end(self, tp: TopicPartition, assigned: _Assigned, end: EndOffset) -> None:
        if self._current_boot_ms != end.sent_boot_ms:
            self._current, self._current_boot_ms = [], end.sent_boot_ms
        known = assigned.end
        if assigned.at_end and known is not None and known.offset == end.offset == assigned.position:
            self._current.append(tp)
        else:
            self._news.add(tp)
        assigned.end = end

    def _fetch_more(self) -> None:
        for tp in list(self._not_fetched):
            assigned = self._assigned[tp]
            if assigned.beginning is None or assigned.end is None or assigned.lost or tp.topic not in self._states:
                continue
            # As a number: the client takes half a second to look up a name for it.
            start = assigned.position or assigned.beginning
            self._client.incremental_assign([KafkaTopicPartition(*tp, start)])
            self._not_fetched.discard(tp)

    def _stop_fetching(self, tp: TopicPartition) -> None:
        if tp not in self._not_fetched:
            self._client.incremental_unassign([KafkaTopicPartition(*tp)])
            self._not_fetched.add(tp)
        self._waiting = [message for message in self._waiting if (message.topic(), message.partition()) != tp]

    def _ask_what_is_due(self) -> None:
        if not self._assigned:
            return
        questions = (self._ends, self._beginnings, self._describing, self._configuring)
        if any(question.answered for question in questions):
            self._topics.heard()
            for question in questions:
                question.answered = False
        else:
            self._topics.renew_if_silent()
        now, admin = boot_ms(), self._topics.admin
        if admin is not self._asked:
            # What was requested of another client may never be answered.
            for question in questions:
                question.abandon()
            self._asked = admin
        for question in questions:
            question.send_if_due(admin, now)

    def _ends_to_ask(self) -> list[TopicPartition]:
        """All unknown ends, or some of the known ones, in turn."""
        unknown = [tp for tp, assigned in self._assigned.items() if assigned.end is None]
        if unknown:
            return unknown
        self._to_ask = self._to_ask or list(self._assigned)
        some, self._to_ask = self._to_ask[:_ENDS_AT_ONCE], self._to_ask[_ENDS_AT_ONCE:]
        return [tp for tp in some if tp in self._assigned]

    def _topic_names(self) -> list[str]:
        return sorted({tp.topic for tp in self._assigned})


def _counts(question: _Question, assigned: _Assigned, known: object) -> bool:
    """Whether an answer counts: the first does not if it was requested earlier, perhaps from a replaced topic."""
    return known is not None or question.sent_boot_ms >= assigned.since_boot_ms


def _young(newest_epoch_ms: int, state: TopicState, lag_since_epoch_ms: float) -> bool:
    """Whether records were read that compaction cannot have reached: offsets missing after them never had records.

    Kafka's cleaner stops at the first segment with a record younger than ``min.compaction.lag.ms``. It may have
    been raised at any time, so records from before it was first read prove nothing.
    """
    return newest_epoch_ms > max(lag_since_epoch_ms, epoch_ms() - _PROVEN_YOUNG * state.min_compaction_lag_ms)


def _partition_of(message: Message) -> TopicPartition:
    return TopicPartition(message.topic(), message.partition())  # type: ignore[arg-type]


def _records(messages: list[Message]) -> list[Record]:
    """Messages as records; most have no headers, and a restore makes millions of them."""
    return [
        (m.offset(), m.key(), m.value(), m.timestamp()[1], False)  # type: ignore[misc]
        if m.headers() is None
        else _record(m)
        for m in messages
    ]


def _record(message: Message) -> Record:
    """A message whose headers may mark it as a heartbeat, or state from when its version is valid."""
    key, stamp, heartbeat = message.key(), message.timestamp()[1], False
    for name, value in message.headers() or ():  # type: ignore[str-unpack]
        if name == HEARTBEAT_HEADER:
            heartbeat = key is not None and key.startswith(_HEARTBEATS)
        elif name == VALID_FROM_HEADER and value:
            stamp = int.from_bytes(value, "big", signed=True)  # type: ignore[arg-type]
    return message.offset(), key, message.value(), stamp, heartbeat  # type: ignore[return-value]
