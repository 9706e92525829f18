"""librdkafka's messages as records."""

from __future__ import annotations

from confluent_kafka import Message

from forebay.changelog.base import Record
from forebay.changelog.heartbeat_keys import heartbeat_key
from forebay.changelog.record_headers import HEARTBEAT_HEADER, VALID_FROM_HEADER
from forebay.tasks import TopicPartition

_HEARTBEATS = heartbeat_key("")


def partition_of(message: Message) -> TopicPartition:
    """The partition that a message is of."""
    return TopicPartition(message.topic(), message.partition())  # type: ignore[arg-type]


def records_of(messages: list[Message]) -> list[Record]:
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
