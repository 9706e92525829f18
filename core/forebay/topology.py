"""The topology: sub-topologies and their stores, read from ``topology.toml``."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property, lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from forebay.codecs.keys import KEY_CODECS, TEXT_KEY_CODECS, KeyCodec
from forebay.codecs.values import TEXT_VALUE_CODECS, VALUE_CODECS, ValueCodec
from forebay.errors import PartitionerMissing, TopologyError
from forebay.lag import Tolerance
from forebay.partitioning import Murmur2Partitioner, StreamPartitioner
from forebay.spark_state import SparkState, parse_spark_state
from forebay.store_kinds import STORE_KINDS, StoreKind
from forebay.stored_keys import StoredKeys
from forebay.task_ids import TaskId, TopicPartition
from forebay.toml_tables import (
    NAME,
    NAME_RULE,
    boolean_field,
    choice_field,
    integer_field,
    name_field,
    refuse_unknown,
)

_MOST_PARTITIONS = 65_536
"""More are probably a typing error, and each would be a file or a topic's partition."""
KINDS = tuple(STORE_KINDS)
PARTITIONER_ENTRY_POINTS = "forebay.partitioners"
STORE_ENTRY_POINTS = "forebay.stores"
_REMEMBERED_PARTITIONS = 65_536
_REMEMBERED_BYTES = 128
"""Longer keys are computed each time: the cache must be bounded in bytes."""


@lru_cache(maxsize=_REMEMBERED_PARTITIONS)
def _remembered(worked_out: Callable[[bytes, int], int], key: bytes, partitions: int) -> int:
    """The partition of a key; one bounded cache for all stores."""
    return worked_out(key, partitions)


_ALL_DURATIONS = frozenset(name for kind in STORE_KINDS.values() for name in kind.durations)
_MOST_AHEAD_MS = 7 * 86_400_000
_OF_THE_WRITER = "of_the_writer"
"""Marks the fields that no worker needs: a change of them rebuilds nothing."""


@dataclass(frozen=True)
class StoreSpec:
    """One store: its kind, codecs, partitioner, changelog topic, and how long it keeps what.

    Durations are in milliseconds, and set only for the kinds that have them. The ``max_`` fields are the tolerance
    of a read that names none; None is unlimited.
    """

    name: str
    kind: str
    key: str
    value: str
    partitioner: str
    topic: str
    partitions: int
    supplier: str = "rocksdb"
    """The store's implementation on workers: ``rocksdb``, ``memory``, or an entry point of ``forebay.stores``."""
    window_size_ms: int | None = None
    retention_ms: int | None = None
    gap_ms: int | None = None
    history_retention_ms: int | None = None
    timestamp_after_max_ms: int | None = None
    """How far a window's or session's end may be after its record's timestamp in the log, and still move stream
    time; None for the default."""
    latest_by: str | None = None
    """The column whose highest value is a key's latest, None if that is the last record of the log."""
    max_record_lag: int | None = None
    max_time_lag_ms: int | None = None
    max_age_ms: int | None = None
    external: bool = False
    """Whether others than forebay's sink write the topic."""
    on_bad_value: str = "stop"
    """What happens at a record that does not fit the codecs of an external store: ``stop`` or ``skip``."""
    accept_uncompacted: bool = False
    """Whether to accept a topic that deletes by time, although a rebuilt store lacks what was deleted."""
    spark_state: SparkState | None = field(default=None, metadata={_OF_THE_WRITER: True})
    """The state of a Spark query that the store has, None if a sink or others write its log."""

    @cached_property
    def store_kind(self) -> StoreKind:
        """The kind named by ``kind``, which ``latest_by`` changes."""
        kind = STORE_KINDS[self.kind]
        return kind if self.latest_by is None or kind.with_latest_by is None else kind.with_latest_by

    @cached_property
    def name_bytes(self) -> bytes:
        """The name as it appears in answers."""
        return self.name.encode()

    @cached_property
    def key_codec(self) -> KeyCodec:
        """The codec named by ``key``."""
        return KEY_CODECS[self.key]

    @cached_property
    def value_codec(self) -> ValueCodec:
        """The codec named by ``value``."""
        return VALUE_CODECS[self.value]

    @cached_property
    def with_text_numbers(self) -> StoreSpec:
        """The same store for requests with ``numbers=text``."""
        return _TextSpec(**{one.name: getattr(self, one.name) for one in fields(self)})

    @cached_property
    def validated(self) -> bool:
        """Whether records are checked against the codecs as they are applied.

        Values of ``json`` too: they are part of answers as they are, and one that is none would add to them.
        """
        return self.external or self.value != "bytes"

    @cached_property
    def most_ahead_ms(self) -> int:
        """How far an end may be after its record's timestamp in the log, and still move stream time.

        Why by the record's own timestamp: every replica, replay and compaction decides alike, whenever it reads
        the record. Kafka bounds producers' timestamps the same way (KIP-937).
        """
        return _MOST_AHEAD_MS if self.timestamp_after_max_ms is None else self.timestamp_after_max_ms

    @cached_property
    def default_tolerance(self) -> Tolerance:
        """The tolerance of a read that states none."""
        return Tolerance(self.max_record_lag, self.max_time_lag_ms, self.max_age_ms)

    @cached_property
    def stored_keys(self) -> StoredKeys:
        """The layout of the store's keys."""
        return StoredKeys(self.store_kind, self.key_codec)

    @cached_property
    def stream_partitioner(self) -> StreamPartitioner | None:
        """The partitioner, or None if it is ``unknown``; raises ``PartitionerMissing``."""
        return find_partitioner(self.partitioner)

    @cached_property
    def partition_of(self) -> Callable[[bytes], int]:
        """The partition of a key in plain bytes; a bounded number of recent results is cached.

        Raises ``TopologyError`` if the partitioner is ``unknown``.
        """
        partitioner = self.stream_partitioner
        if partitioner is None:
            raise TopologyError(f"The partitioner of {self.name!r} is 'unknown'.")
        partitions = self.partitions
        worked_out = partitioner.partition
        return lambda key: (
            _remembered(worked_out, key, partitions)
            if len(key) <= _REMEMBERED_BYTES
            else worked_out(key, partitions)
        )

    def document(self) -> dict[str, Any]:
        """The specification as JSON values, without unset fields and without what concerns its writer alone."""
        return {
            item.name: getattr(self, item.name)
            for item in _fields_of_readers()
            if getattr(self, item.name) is not None
        }

    def chosen(self) -> dict[str, Any]:
        """The fields that differ from their default: a version with more fields gives the same for a store that
        sets none of them."""
        mine = {item.name: (getattr(self, item.name), item.default) for item in _fields_of_readers()}
        return {
            _FORMER_NAMES.get(name, name): value for name, (value, default) in mine.items() if value != default
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> StoreSpec:
        """The inverse of ``document``; members that this version does not know are ignored."""
        current = {former: name for name, former in _FORMER_NAMES.items()}
        known = {item.name for item in _fields_of_readers()}
        named = {current.get(name, name): value for name, value in document.items()}
        return cls(**{name: value for name, value in named.items() if name in known})


_FORMER_NAMES = {"external": "foreign"}
"""The names of fields in 0.1. Why: fingerprints keep them, so that a rename rebuilds nothing, and a router reads
them in the documents of workers that are still to be upgraded."""


@cache
def _fields_of_readers() -> tuple[dataclasses.Field[Any], ...]:
    """The fields of a store that matter to those who hold it."""
    return tuple(item for item in dataclasses.fields(StoreSpec) if _OF_THE_WRITER not in item.metadata)


class _TextSpec(StoreSpec):
    """A store whose 64-bit integers are strings in JSON."""

    @cached_property
    def key_codec(self) -> KeyCodec:
        return TEXT_KEY_CODECS[self.key]

    @cached_property
    def value_codec(self) -> ValueCodec:
        return TEXT_VALUE_CODECS[self.value]


@dataclass(frozen=True)
class SubTopology:
    """Stores with the same partitioning that are assigned together; the ordinal is the place in the file."""

    ordinal: int
    name: str
    partitions: int
    stores: tuple[StoreSpec, ...]


@dataclass(frozen=True)
class Topology:
    """What one application keeps: an ordered list of sub-topologies."""

    application_id: str
    subtopologies: tuple[SubTopology, ...]
    stores: Mapping[str, StoreSpec] = field(init=False, compare=False)
    """Every store, by name."""

    def __post_init__(self) -> None:
        stores = {spec.name: spec for sub in self.subtopologies for spec in sub.stores}
        object.__setattr__(self, "stores", stores)

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits that identify a topology."""
        text = json.dumps(
            [
                self.application_id,
                [[sub.ordinal, sub.partitions, [s.chosen() for s in sub.stores]] for sub in self.subtopologies],
            ],
            sort_keys=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @cached_property
    def tasks(self) -> tuple[TaskId, ...]:
        """Every task, in order."""
        return tuple(TaskId(sub.ordinal, p) for sub in self.subtopologies for p in range(sub.partitions))

    def stores_of(self, task: TaskId) -> tuple[StoreSpec, ...]:
        """The stores of which a task holds one partition."""
        return self.subtopologies[task.ordinal].stores

    def topic_partitions(self, task: TaskId) -> Iterator[TopicPartition]:
        """The changelog partitions that a task replays."""
        return (TopicPartition(spec.topic, task.partition) for spec in self.stores_of(task))

    @cached_property
    def ordinal_by_store(self) -> Mapping[str, int]:
        """The ordinal of each store's sub-topology."""
        return {spec.name: sub.ordinal for sub in self.subtopologies for spec in sub.stores}


def find_partitioner(name: str) -> StreamPartitioner | None:
    """The partitioner of that name, None for ``unknown``; raises ``PartitionerMissing`` for one not installed."""
    if name == "unknown":
        return None
    if name == "murmur2":
        return Murmur2Partitioner()
    for entry_point in entry_points(group=PARTITIONER_ENTRY_POINTS, name=name):
        partitioner: StreamPartitioner = entry_point.load()()
        return partitioner
    raise PartitionerMissing(
        f"There is no partitioner {name!r} here: use 'murmur2', 'unknown', or the name of an entry point in the "
        f"group {PARTITIONER_ENTRY_POINTS!r}, and install its package."
    )


def load_topology(path: str | Path) -> Topology:
    """Read a topology file; raises ``TopologyError`` naming the file, the place and the remedy."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"The topology {path} cannot be read: {error}.") from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TopologyError(f"The topology {path} is not valid TOML: {error}.") from None
    try:
        return parse_topology(document)
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from None


def parse_topology(document: Mapping[str, Any]) -> Topology:
    """A topology from its TOML document; raises ``TopologyError``."""
    refuse_unknown(document, {"application_id", "subtopology"}, "the topology")
    application_id = name_field(document, "application_id", "the topology")
    tables = document.get("subtopology")
    if not isinstance(tables, list) or not tables:
        raise TopologyError("the topology has no [[subtopology]]; add at least one.")
    subtopologies = tuple(_subtopology(table, ordinal, application_id) for ordinal, table in enumerate(tables))
    names = [spec.name for sub in subtopologies for spec in sub.stores]
    topics = [spec.topic for sub in subtopologies for spec in sub.stores]
    for what, values in (("store name", names), ("topic", topics)):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise TopologyError(f"the {what} {twice[0]!r} is used twice; each store needs its own.")
    return Topology(application_id, subtopologies)


def _subtopology(table: Mapping[str, Any], ordinal: int, application_id: str) -> SubTopology:
    where = f"sub-topology {ordinal}"
    refuse_unknown(table, {"name", "partitions", "store"}, where)
    name = name_field(table, "name", where)
    partitions = integer_field(table, "partitions", where, least=1)
    if partitions > _MOST_PARTITIONS:
        raise TopologyError(f"{where}: partitions = {partitions} is more than {_MOST_PARTITIONS}; use fewer.")
    stores = table.get("store")
    if not isinstance(stores, list) or not stores:
        raise TopologyError(f"{where} ({name!r}) has no [[subtopology.store]]; add at least one.")
    specs = tuple(_store(store, application_id, partitions, where) for store in stores)
    return SubTopology(ordinal, name, partitions, specs)


def _store(table: Mapping[str, Any], application_id: str, partitions: int, where: str) -> StoreSpec:
    if not isinstance(table, Mapping):
        raise TopologyError(f"a store of {where} is {table!r}, not a table.")
    name = name_field(table, "name", f"a store of {where}")
    where = f"store {name!r}"
    tolerance = ("max_record_lag", "max_time_lag_ms", "max_age_ms")
    external = ("external", "on_bad_value", "accept_uncompacted")
    common = {
        "name",
        "kind",
        "key",
        "value",
        "partitioner",
        "topic",
        "supplier",
        "spark_state",
        "latest_by",
        *tolerance,
        *external,
    }
    for current, former in _FORMER_NAMES.items():
        if former in table:
            raise TopologyError(f"{where} has {former!r}, which is called {current!r} since 0.2; rename it.")
    refuse_unknown(table, common | _ALL_DURATIONS, where)
    kind = STORE_KINDS[choice_field(table, "kind", KINDS, KINDS[0], where)]
    for extra in sorted(_ALL_DURATIONS - kind.durations):
        if extra in table:
            raise TopologyError(f"{where} is of kind {kind.name!r}, which has no {extra!r}; remove it.")
    given = [*kind.required, *(field_name for field_name in kind.optional if field_name in table)]
    durations = {field_name: integer_field(table, field_name, where, least=1) for field_name in given}
    fault = kind.durations_fault(durations)
    if fault is not None:
        raise TopologyError(f"{where} {fault}.")
    topic = table.get("topic", f"{application_id}-{name}-changelog")
    if not isinstance(topic, str) or not NAME.fullmatch(topic) or len(topic) > 249:
        raise TopologyError(f"{where}: the topic {topic!r} is not a topic name ({NAME_RULE}).")
    partitioner = table.get("partitioner", "murmur2")
    find_partitioner(partitioner)
    return StoreSpec(
        name=name,
        kind=kind.name,
        key=choice_field(table, "key", tuple(KEY_CODECS), "string", where),
        value=choice_field(table, "value", tuple(VALUE_CODECS), "json", where),
        partitioner=partitioner,
        topic=topic,
        partitions=partitions,
        supplier=_supplier(table, where),
        external=boolean_field(table, "external", where),
        on_bad_value=_on_bad_value(table, where),
        accept_uncompacted=boolean_field(table, "accept_uncompacted", where),
        spark_state=_spark_state(table, kind, where),
        latest_by=_latest_by(table, kind, where),
        **durations,
        **{item: integer_field(table, item, where, least=0) for item in tolerance if item in table},
    )


def _spark_state(table: Mapping[str, Any], kind: StoreKind, where: str) -> SparkState | None:
    if "spark_state" not in table:
        return None
    if table.get("external") is True or table.get("value", "json") != "json" or kind.keeps_versions:
        raise TopologyError(
            f"{where} has spark_state, which only key-value, window and session stores of JSON values have that "
            "are not external."
        )
    return parse_spark_state(table["spark_state"], where)


def _latest_by(table: Mapping[str, Any], kind: StoreKind, where: str) -> str | None:
    column = table.get("latest_by")
    if column is None:
        return None
    others = ("external", "accept_uncompacted", "spark_state")
    if kind.with_latest_by is None or any(table.get(other) for other in others):
        raise TopologyError(
            f"{where} has latest_by, which only key-value stores have that the sink writes, without "
            f"{', '.join(others[:-1])} or {others[-1]}."
        )
    if not isinstance(column, str) or not column:
        raise TopologyError(f"{where}: latest_by = {column!r} is not the name of a column.")
    return column


def _on_bad_value(table: Mapping[str, Any], where: str) -> str:
    if "on_bad_value" in table and table.get("external") is not True:
        raise TopologyError(f"{where} has on_bad_value, which only stores with external = true have.")
    return choice_field(table, "on_bad_value", ("stop", "skip"), "stop", where)


def _supplier(table: Mapping[str, Any], where: str) -> str:
    supplier = table.get("supplier", "rocksdb")
    if supplier not in ("rocksdb", "memory") and not entry_points(group=STORE_ENTRY_POINTS, name=supplier):
        raise TopologyError(
            f"{where}: there is no store supplier {supplier!r}: use 'rocksdb', 'memory', or the name of an "
            f"installed entry point in the group {STORE_ENTRY_POINTS!r}."
        )
    return str(supplier)
