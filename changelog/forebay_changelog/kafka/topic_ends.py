"""The ends of a query's source topics, in whichever cluster they are."""

from __future__ import annotations

from confluent_kafka import IsolationLevel

from forebay.errors import ChangelogError
from forebay.task_ids import TopicPartition
from forebay_changelog.kafka.topics import KafkaTopics
from forebay_changelog.kafka.url import KafkaUrl


class TopicEnds:
    """Reads the ends of topics at a ``kafka://`` URL, whatever is in open transactions included.

    Raises ``SettingError`` for a URL that is none.
    """

    def __init__(self, url: str) -> None:
        self._topics = KafkaTopics(KafkaUrl.parse(url))

    def __call__(self, topics: frozenset[str]) -> dict[tuple[str, int], int] | None:
        """The next offset of every partition of some topics; None if any cannot be read now."""
        try:
            partitions = [
                TopicPartition(topic, partition)
                for topic in sorted(topics)
                for partition in range(self._topics.describe(topic).partitions)
            ]
        except ChangelogError:
            return None
        ends = self._topics.end_offsets(partitions, IsolationLevel.READ_UNCOMMITTED)
        if len(ends) < len(partitions):
            return None
        return {(tp.topic, tp.partition): end for tp, end in ends.items()}
