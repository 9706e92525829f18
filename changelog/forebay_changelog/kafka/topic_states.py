"""The topics that a consumer reads, as last described: which they are, and what compaction cannot have touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka import IsolationLevel, KafkaError

from forebay.clock import epoch_ms
from forebay.errors import ChangelogError
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog.kafka.admin_polls import AdminPoll, ask_configs, ask_descriptions
from forebay_changelog.kafka.topics import (
    KafkaTopics,
    TopicState,
    Unsuitable,
    config_values,
    topic_state,
    unsuitable,
)
from forebay_changelog.kafka.transient_errors import is_away
from forebay_changelog.kafka.url import KafkaUrl

_DESCRIPTION_INTERVAL_MS = 1_000.0
_CONFIG_INTERVAL_MS = 5_000.0
_REFUSED_FOR_MS = 3_000.0
"""A topic that is being recreated is missing for a moment, and brokers learn of one that is new one by one."""
_PROVEN_YOUNG = 0.9
"""Clocks differ: records count as too young for compaction up to this fraction of the topic's lag."""


class TopicChanges(NamedTuple):
    """Topics that changed in any way, and those among them that were deleted and recreated."""

    changed: set[str]
    replaced: set[str]


class TopicStates:
    """Keeps the states of the topics that ``names`` returns."""

    def __init__(self, names: Callable[[], list[str]]) -> None:
        self.describing = AdminPoll(_DESCRIPTION_INTERVAL_MS, lambda admin: ask_descriptions(admin, names()))
        self.configuring = AdminPoll(_CONFIG_INTERVAL_MS, lambda admin: ask_configs(admin, names()))
        self._descriptions: dict[str, Any] = {}
        self._configs: dict[str, dict[str, str]] = {}
        self._states: dict[str, TopicState] = {}
        self._lag_since_epoch_ms: dict[str, float] = {}
        """Since when a topic is known to have had at least its present ``min.compaction.lag.ms``."""
        self._refused_since_boot_ms: dict[str, float] = {}
        """Since when a topic cannot be described, for another reason than brokers that are away."""

    def get(self, topic: str) -> TopicState | None:
        """A topic's state, None until it was described."""
        return self._states.get(topic)

    def take_answers(self) -> TopicChanges:
        """Take over what was answered since the last call."""
        changes = TopicChanges(set(), set())
        self._descriptions |= self.describing.answers()
        self._note_refusals()
        self._configs |= ((topic, config_values(found)) for topic, found in self.configuring.answers())
        for topic in self._descriptions.keys() & self._configs.keys():
            state = topic_state(self._descriptions.pop(topic), self._configs[topic])
            known = self._states.get(topic)
            if state == known:
                continue
            self._states[topic] = state
            changes.changed.add(topic)
            replaced = known is not None and known.identity != state.identity
            if replaced:
                changes.replaced.add(topic)
            if known is None or replaced or known.min_compaction_lag_ms < state.min_compaction_lag_ms:
                self._lag_since_epoch_ms[topic] = epoch_ms()
        return changes

    def unsuitable(self, spec: StoreSpec) -> Unsuitable | None:
        """Why a store's topic, as last configured, is not suitable for it; None if it is."""
        config = self._configs.get(spec.topic)
        return None if config is None else unsuitable(spec, config)

    def refusal(self, topic: str, now_boot_ms: float) -> KafkaError | None:
        """Why a topic cannot be described, None while it can or that may be about to change."""
        since = self._refused_since_boot_ms.get(topic)
        if since is None or now_boot_ms - since < _REFUSED_FOR_MS:
            return None
        return self.describing.errors.get(topic)

    def _note_refusals(self) -> None:
        refused = {topic for topic, error in self.describing.errors.items() if not is_away(error)}
        for topic in self._refused_since_boot_ms.keys() - refused:
            del self._refused_since_boot_ms[topic]
        for topic in refused:
            self._refused_since_boot_ms.setdefault(topic, self.describing.sent_boot_ms)

    def is_young(self, topic: str, newest_epoch_ms: int) -> bool:
        """Whether compaction cannot have reached a record of this time, nor anything that follows it.

        Kafka's cleaner stops at the first segment with a record younger than ``min.compaction.lag.ms``. It may
        have been raised at any time, so records from before it was first read prove nothing.
        """
        state = self._states[topic]
        youngest = epoch_ms() - _PROVEN_YOUNG * state.min_compaction_lag_ms
        return newest_epoch_ms > max(self._lag_since_epoch_ms[topic], youngest)


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
