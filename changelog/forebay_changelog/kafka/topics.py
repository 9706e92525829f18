"""Topics of a Kafka cluster: created for stores, refused if unsuitable, identified by their topic ids."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Uuid
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from forebay.clock import boot_ms
from forebay.errors import (
    ChangelogError,
    ChangelogUnreachable,
    PartitionCountMismatch,
    PartitionsAdded,
    TopicMissing,
    TopicRefused,
)
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog.base import missing_external
from forebay_changelog.kafka.admin_polls import ask_configs, ask_descriptions, ask_offsets
from forebay_changelog.kafka.client_close import Admin
from forebay_changelog.kafka.transient_errors import ELECTING, is_away, passes
from forebay_changelog.kafka.url import KafkaUrl

_NEWEST_THAT_KEEPS = (2, 16)
_KEEPS = tuple(map(int, version("confluent-kafka").split(".")[:2])) <= _NEWEST_THAT_KEEPS
_give_back = ctypes.pythonapi.Py_DecRef
_give_back.argtypes = [ctypes.py_object]
_give_back.restype = None
T = TypeVar("T")
_DAY_MS = 86_400_000
_SEGMENTS_PER_TTL = 4
_MIN_COMPACTION_LAG_MS = 3_600_000
_MIN_TOMBSTONE_LIFE_MS = 60_000.0
"""A replica that did not read for this long is rebuilt, and every start takes some seconds."""
_TIMEOUT_S = 3.0
_RETRY_S = 0.02
_METADATA_REFRESH_MS = 1_000
_UNREACHABLE_FOR_MS = 5_000.0
_RENEWED_AFTER_MS = 15_000.0
"""An admin client without answers for this long is replaced: some wait minutes for a controller that is there."""
_NO_TOPIC_ID = str(Uuid(0, 0))
_ASSIGNMENTS_CONFIG = {"cleanup.policy": "compact", "segment.ms": "600000", "min.compaction.lag.ms": "60000"}


def topic_id(description: Any) -> str:
    """The id in the description of a topic; the client's surplus reference to it is given back."""
    if _KEEPS and _references(description) > _DUE_REFERENCES:
        _give_back(description.topic_id)
    return str(description.topic_id)


def _references(description: Any) -> int:
    """How many there are to the id, as Python counts them here."""
    found = description.topic_id
    return sys.getrefcount(found)


_DUE_REFERENCES = _references(SimpleNamespace(topic_id=object()))


class TopicState(NamedTuple):
    """What a topic's description showed."""

    identity: str
    """Kafka's topic id; a topic recreated under the same name has a new one."""
    partitions: int
    tombstone_life_ms: float | None
    """How long compaction keeps tombstones (``delete.retention.ms``); None if nothing is compacted."""
    min_compaction_lag_ms: float
    """Compaction leaves younger records alone, and all that follow one."""
    deletes: bool
    """Whether the brokers delete records by time or size."""


def topic_config(spec: StoreSpec) -> dict[str, str]:
    """The configuration of a topic that forebay creates for a store."""
    records_ms, replaced_ms = spec.store_kind.log_retention(spec)
    lag_ms = 0 if replaced_ms is None else replaced_ms + _DAY_MS
    config = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(max(_MIN_COMPACTION_LAG_MS, lag_ms))}
    if records_ms is not None:
        config |= {"cleanup.policy": "compact,delete", "retention.ms": str(records_ms + _DAY_MS)}
    if spec.ttl_ms is not None:
        # Only whole segments are deleted, and none that is written to.
        config["segment.ms"] = str(max(1, min(_DAY_MS, spec.ttl_ms // _SEGMENTS_PER_TTL)))
    return config


class Unsuitable(NamedTuple):
    """What is wrong with a topic's configuration."""

    kind: str
    """As in the findings of ``/v1/health``."""
    text: str
    """What it does, and the remedy; the topic is the subject."""


def unsuitable(spec: StoreSpec, config: Mapping[str, str]) -> Unsuitable | None:
    """Why a topic of this configuration is not suitable for a store, None if it is.

    What an external topic keeps is its owner's decision.
    """
    loss = None if spec.accept_uncompacted else loss_by(spec, config)
    if loss is not None:
        other = "accept_uncompacted = true" if spec.ttl_ms is None else "a shorter ttl_ms"
        return Unsuitable("topic-loses-records", f"{loss}, or {other} on the store")
    deletes = "delete" in config.get("cleanup.policy", "delete") and _limits(config)["retention.ms"] >= 0
    if spec.ttl_ms is None or spec.external or deletes:
        return None
    kept = f"keeps values of {spec.name!r} that have expired. Set its retention with 'forebay topology apply'"
    return Unsuitable("topic-keeps-expired", kept)


def loss_by(spec: StoreSpec, config: Mapping[str, str]) -> str | None:
    """What a store rebuilt from a topic of this configuration would lack, and the remedy; None if nothing."""
    policy = config.get("cleanup.policy", "delete")
    needed_ms, replaced_ms = spec.store_kind.log_retention(spec)
    if "delete" in policy:
        limits = _limits(config)
        kept = limits["retention.ms"] < 0 or (needed_ms is not None and limits["retention.ms"] >= needed_ms)
        if not kept or limits["retention.bytes"] >= 0:
            shown = ", ".join(f"{name}={limit}" for name, limit in limits.items())
            needed = "cleanup.policy=compact" if needed_ms is None else f"retention.ms={needed_ms + _DAY_MS}"
            return (
                f"has cleanup.policy={policy} with {shown}: what it deletes, a rebuilt store {spec.name!r} would "
                f"lack. Set {needed} on it and no retention.bytes"
            )
    lag_ms = int(config.get("min.compaction.lag.ms", 0))
    if "compact" in policy and replaced_ms is not None and lag_ms < replaced_ms:
        return (
            f"has min.compaction.lag.ms={lag_ms}: a rebuilt store {spec.name!r}, whose history is of "
            f"{replaced_ms} ms, would lack the versions that it compacts. Set it to {replaced_ms + _DAY_MS}"
        )
    return None


def assignments_topic(application_id: str) -> str:
    """Where a worker group keeps its assignments."""
    return f"{application_id}-assignments"


class _Errors:
    """Why connections failed, such as a password or a certificate: a request only times out."""

    def __init__(self) -> None:
        self.newest: str | None = None

    def note(self, error: KafkaError) -> None:
        """Called by the client."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.newest = error.str()


class KafkaTopics:
    """The admin side of a cluster.

    If no broker answers, ``ChangelogUnreachable`` is raised, and for a moment afterwards immediately, so that many
    stores opened one by one do not each wait.
    """

    def __init__(self, url: KafkaUrl) -> None:
        self._url = url
        self._admin: Admin | None = None
        self._lock = threading.Lock()
        self._unreachable_until = 0.0
        self._errors = _Errors()
        self._responded_boot_ms = boot_ms()
        """When the admin client was made, or answered last."""

    def ensure(self, spec: StoreSpec, *, create: bool = True) -> None:
        """Create a store's topic if it does not exist; check it otherwise.

        Raises ``TopicMissing`` (with ``create`` off, or for an external store), ``PartitionCountMismatch``,
        ``TopicRefused`` and ``ChangelogUnreachable``.
        """
        try:
            found = self.describe(spec.topic)
        except TopicMissing:
            if spec.external:
                raise missing_external(spec) from None
            if not create:
                raise
            self._create(spec.topic, spec.partitions, topic_config(spec))
            found = self._soon(lambda: self.describe(spec.topic))
        if found.partitions != spec.partitions:
            refusal = PartitionsAdded if found.partitions > spec.partitions else PartitionCountMismatch
            raise refusal(
                f"The topic {spec.topic!r} at {self._url} has {found.partitions} partitions, the topology has "
                f"{spec.partitions}. A different count moves keys: set partitions = {found.partitions}, or give "
                "the store a new name."
            )
        fault = unsuitable(spec, self._soon(lambda: self._config(spec.topic)))
        if fault is not None:
            raise TopicRefused(f"The topic {spec.topic!r} at {self._url} {fault.text}.")
        if found.tombstone_life_ms is not None and found.tombstone_life_ms < _MIN_TOMBSTONE_LIFE_MS:
            raise TopicRefused(
                f"The topic {spec.topic!r} at {self._url} has delete.retention.ms={found.tombstone_life_ms:.0f}: "
                "a reader that is away for longer may miss deletions, so every pause would cost a rebuild. Set it "
                f"to at least {_MIN_TOMBSTONE_LIFE_MS:.0f}; Kafka's default is a day."
            )

    def set_retention(self, spec: StoreSpec) -> bool:
        """Have the brokers delete what has expired by a store's ``ttl_ms``; returns whether anything was changed.

        A longer retention, and a topic that is not forebay's, stay as they are. Raises as ``describe``.
        """
        if spec.ttl_ms is None or spec.external:
            return False
        with self._named(spec.topic):
            config = self._config(spec.topic)
            if unsuitable(spec, config) is None:
                return False
            wanted = {**topic_config(spec), "retention.bytes": "-1"}
            resource = ConfigResource(
                ConfigResource.Type.TOPIC,
                spec.topic,
                incremental_configs=[
                    ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                    for name, value in wanted.items()
                ],
            )
            self._call(lambda admin: admin.incremental_alter_configs([resource])[resource])
        return True

    def describe(self, topic: str) -> TopicState:
        """A topic's identity and configuration; raises ``TopicMissing`` and ``ChangelogUnreachable``."""
        with self._named(topic):
            found = self._call(lambda admin: ask_descriptions(admin, [topic])[topic])
            config = self._config(topic)
        state = topic_state(found, config)
        if state.identity == _NO_TOPIC_ID:
            raise ChangelogError(
                f"The brokers report no id for topic {topic!r}, so a recreated topic could not be recognised. "
                "Kafka has topic ids since 2.8: upgrade the brokers, and their inter.broker.protocol.version."
            )
        return state

    def _soon(self, ask: Callable[[], T]) -> T:
        """Ask about a topic just created, here or elsewhere: brokers learn of it one after another."""
        deadline = boot_ms() + _TIMEOUT_S * 1000
        while True:
            try:
                return ask()
            except TopicMissing:
                if boot_ms() > deadline:
                    raise
                time.sleep(_RETRY_S)

    def end_offsets(
        self,
        topic_partitions: list[TopicPartition],
        isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, int]:
        """The ends for readers of an isolation level; partitions that cannot be reached are left out."""
        try:
            futures = self._requested(
                lambda admin: ask_offsets(admin, topic_partitions, OffsetSpec.latest(), isolation_level)
            )
        except ChangelogError:
            return {}
        offsets: dict[TopicPartition, int] = {}
        failed: Exception | None = None
        for tp, future in futures.items():
            try:
                offsets[tp] = int(future.result(_TIMEOUT_S + 1).offset)
            except (KafkaException, TimeoutError) as error:
                failed = error
        if offsets:
            self.on_response()
        elif failed is not None:
            self._translated(failed)
        return offsets

    def delete(self, topic: str) -> None:
        """Delete a topic and wait until it is gone."""
        with self._named(topic):
            self._call(lambda admin: admin.delete_topics([topic])[topic])

    @property
    def admin(self) -> Admin:
        """The admin client; its requests return futures and never block."""
        with self._lock:
            if self._admin is None:
                config = self._url.librdkafka(
                    socket_timeout_ms=int(_TIMEOUT_S * 1000),
                    # It asks leaders by what it knows of them, even dead ones, and by default for five minutes.
                    topic_metadata_refresh_interval_ms=_METADATA_REFRESH_MS,
                    metadata_max_age_ms=2 * _METADATA_REFRESH_MS,
                )
                self._admin = Admin(config, self._errors.note)
                self._responded_boot_ms = boot_ms()
            return self._admin

    def on_response(self) -> None:
        """The admin client answered: what was the matter is over."""
        self._responded_boot_ms = boot_ms()
        self._errors.newest = None

    def renew_if_silent(self) -> None:
        """Replace an admin client that has not answered for too long."""
        with self._lock:
            if boot_ms() - self._responded_boot_ms >= _RENEWED_AFTER_MS:
                self._admin = None

    def gone(self, topic: str) -> str:
        """What is the matter, and what to do, if a topic that was read is there no more."""
        return (
            f"The topic {topic!r} at {self._url} is gone. What was applied of it is served, with growing lag. If "
            "nobody puts it back, 'forebay topology apply' creates it, empty, and workers are rebuilt from that: "
            "fill the store again."
        )

    def unreadable(self, tp: TopicPartition, error: KafkaError) -> str:
        """The same if a partition's end cannot be learnt."""
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return self.gone(tp.topic)
        if error.code() in ELECTING:
            return f"{tp} at {self._url} has no leader: {error.str()}. Start the brokers that have its replicas."
        if is_away(error):
            return self.silent()
        return f"{tp} at {self._url} cannot be read: {error.str()}."

    def silent(self) -> str:
        """The same if no broker answers."""
        with contextlib.suppress(KafkaException):
            self.admin.client.poll(0)
        return self._silent(self._errors.newest)

    def _silent(self, why: str | None) -> str:
        reason = "" if why is None else f": {why}"
        remedy = "Start the brokers, or correct the URL and its properties"
        return f"No broker of {self._url} answers{reason}. {remedy}."

    def ensure_assignments(self, application_id: str) -> str:
        """Create the topic where a worker group keeps its assignments, unless it is there; returns its name."""
        topic = assignments_topic(application_id)
        try:
            self._call(lambda admin: ask_descriptions(admin, [topic])[topic])
        except TopicMissing:
            self._create(topic, 1, _ASSIGNMENTS_CONFIG)
        return topic

    def _create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        new = NewTopic(topic, num_partitions=partitions, config=config)
        try:
            self._call(lambda admin: admin.create_topics([new], request_timeout=_TIMEOUT_S)[topic])
        except ChangelogError as error:
            cause = error.__cause__
            # Another process created it meanwhile.
            if not isinstance(cause, KafkaException) or cause.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _config(self, topic: str) -> dict[str, str]:
        return config_values(self._call(lambda admin: ask_configs(admin, [topic])[topic]))

    def _call(self, request: Callable[[AdminClient], Future[T]]) -> T:
        """A request's result; raises ``ChangelogUnreachable``, ``TopicMissing`` or ``ChangelogError``."""
        future = self._requested(request)
        try:
            result = future.result(_TIMEOUT_S + 1)
            self.on_response()
            return result
        except (KafkaException, TimeoutError) as error:
            raise self._translated(error) from error

    def _requested(self, request: Callable[[AdminClient], T]) -> T:
        if boot_ms() < self._unreachable_until:
            raise ChangelogUnreachable(self._silent(self._errors.newest))
        try:
            # Makes the client deliver events since the last request, which may be long ago.
            admin = self.admin.client
            admin.poll(0)
            return request(admin)
        except KafkaException as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> ChangelogError:
        kafka_error = error.args[0] if isinstance(error, KafkaException) else None
        code = None if kafka_error is None else kafka_error.code()
        if kafka_error is None or is_away(kafka_error):
            self._unreachable_until = boot_ms() + _UNREACHABLE_FOR_MS
            self.admin.client.poll(0)
            why = self._errors.newest or ("time-out" if kafka_error is None else kafka_error.str())
            self.renew_if_silent()
            return ChangelogUnreachable(self._silent(why))
        if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return TopicMissing(f"There is no such topic at {self._url}.")
        if passes(kafka_error):
            return ChangelogUnreachable(f"{self._url}: {kafka_error.str()}")
        return ChangelogError(f"{self._url}: {kafka_error.str()}")

    @contextlib.contextmanager
    def _named(self, topic: str) -> Iterator[None]:
        try:
            yield
        except TopicMissing as error:
            raise TopicMissing(
                f"There is no topic {topic!r} at {self._url}. Create it with 'forebay topology apply', or let "
                "sink and workers do so (create_topics)."
            ) from error


def config_values(entries: Mapping[str, Any]) -> dict[str, str]:
    """A configuration as plain text by name."""
    return {name: entry.value or "" for name, entry in entries.items()}


def topic_state(description: Any, config: Mapping[str, str]) -> TopicState:
    """The contents of the descriptions of a topic and of its configuration."""
    compacted = "compact" in config.get("cleanup.policy", "")
    return TopicState(
        topic_id(description),
        len(description.partitions),
        float(config.get("delete.retention.ms", _DAY_MS)) if compacted else None,
        float(config.get("min.compaction.lag.ms", 0)) if compacted else float("inf"),
        "delete" in config.get("cleanup.policy", "delete")
        and any(limit >= 0 for limit in _limits(config).values()),
    )


def _limits(config: Mapping[str, str]) -> dict[str, int]:
    """By what the brokers delete records, -1 where they do not."""
    return {name: int(config.get(name, -1)) for name in ("retention.ms", "retention.bytes")}
