"""The Kafka changelog of the tests' broker."""

import pytest
from confluent_kafka.admin import AdminClient

from forebay_changelog.kafka.changelog import KafkaChangelog


@pytest.fixture(scope="module")
def changelog(kafka_url: str) -> KafkaChangelog:
    return KafkaChangelog(kafka_url)


@pytest.fixture(scope="module")
def admin(changelog: KafkaChangelog) -> AdminClient:
    return AdminClient(changelog.kafka.librdkafka())
