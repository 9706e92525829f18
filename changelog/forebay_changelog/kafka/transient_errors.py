"""Which of Kafka's errors pass: what no broker answered, and what Kafka's protocol calls retriable."""

from __future__ import annotations

from confluent_kafka import KafkaError

_UNREACHABLE = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
    }
)
"""Errors of unreachable brokers."""
ELECTING = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError._DESTROY,
    }
)
"""Errors while a partition changes its leader, a group its coordinator, or a connection its broker, which Kafka's
protocol calls retriable and librdkafka does not. A broker that has just started knows less than its clients do."""


def passes(error: KafkaError) -> bool:
    """Whether trying again may help, as while brokers are away or partitions have no leader."""
    return error.retriable() or error.code() in _UNREACHABLE | ELECTING


def is_away(error: KafkaError) -> bool:
    """Whether an error only says that no broker answered."""
    return error.code() in _UNREACHABLE
