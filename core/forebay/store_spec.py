"""What the topology says of one store, and what follows from it: kind, codecs, key layout, partitioner."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property, lru_cache
from importlib.metadata import entry_points
from typing import Any

from forebay.codecs.keys import KEY_CODECS, TEXT_KEY_CODECS, AvroKey, KeyCodec
from forebay.codecs.values import DECODED_BY_SCHEMA, TEXT_VALUE_CODECS, VALUE_CODECS, HeadedValue, ValueCodec
from forebay.errors import PartitionerMissing, TopologyError
from forebay.lag import Tolerance
from forebay.partitioning import Murmur2Partitioner, StreamPartitioner
from forebay.retention import Retention
from forebay.store_kinds import STORE_KINDS, StoreKind
from forebay.stored_keys import StoredKeys

PARTITIONER_ENTRY_POINTS = "forebay.partitioners"
_REMEMBERED_PARTITIONS = 65_536
_REMEMBERED_BYTES = 128
"""Longer keys are computed each time: the cache must be bounded in bytes."""


@lru_cache(maxsize=_REMEMBERED_PARTITIONS)
def _remembered(worked_out: Callable[[bytes, int], int], key: bytes, partitions: int) -> int:
    """The partition of a key; one bounded cache for all stores."""
    return worked_out(key, partitions)


_MAX_AHEAD_MS = 7 * 86_400_000
_DECODING_COST = 20
KEEP, DELETE = "keep", "delete"
"""What becomes of a key that leaves a Spark query's state."""
_OF_THE_WRITER = "of_the_writer"
"""Marks the fields that no worker needs: a change of them rebuilds nothing."""


@dataclass(frozen=True)
class StateColumn:
    """A member of the store's values, and the field of Spark's state that it is read from.

    ``path`` is the field's position, or the positions of the structs around it first. With a ``function`` the
    member is the aggregate whose buffer begins there, else the field as it is.
    """

    name: str
    path: tuple[int, ...]
    function: str | None = None


@dataclass(frozen=True)
class SparkState:
    """The operator and variable whose state is the store's content.

    ``columns`` is empty where the fields have names of their own. ``on_removal`` says what becomes of a key that
    leaves the state: ``keep`` or ``delete``, None for the store kind's default.
    """

    operator: int = 0
    variable: str | None = None
    columns: tuple[StateColumn, ...] = ()
    on_removal: str | None = None


@dataclass(frozen=True)
class StoreSpec(Retention):
    """One store: its kind, codecs, partitioner, changelog topic, and how long it keeps what.

    The ``max_`` fields are the tolerance of a read that names none; None is unlimited.
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
    record_headers: bool = False
    """Whether values of an external store are kept with the headers of their records."""
    accept_uncompacted: bool = False
    """Whether to accept a topic that deletes by time, although a rebuilt store lacks what was deleted."""
    compression: str = "lz4"
    """How RocksDB compresses blocks: ``none``, ``lz4`` or ``zstd``."""
    block_size_bytes: int = 4_096
    """How large RocksDB's blocks are, before compression: what a read takes from disk."""
    bloom_bits_per_key: int = 10
    """Of the filters that tell which files lack a key; 0 for none."""
    accept_misplaced: bool = False
    """Whether to state lags although keys are in partitions where the partitioner does not put them."""
    spark_state: SparkState | None = field(default=None, metadata={_OF_THE_WRITER: True})
    """The state of a Spark query that the store has, None if a sink or others write its log."""

    @cached_property
    def store_kind(self) -> StoreKind:
        """The kind named by ``kind``, which ``latest_by`` and the key codec change."""
        kind = STORE_KINDS[self.kind]
        if self.latest_by is not None:
            return kind.with_latest_by or kind
        return (kind.with_schema_keys or kind) if self.key == AvroKey.name else kind

    @cached_property
    def name_bytes(self) -> bytes:
        """The name as it appears in answers."""
        return self.name.encode()

    @cached_property
    def key_codec(self) -> KeyCodec:
        return KEY_CODECS[self.key]

    @cached_property
    def value_codec(self) -> ValueCodec:
        return self._kept(VALUE_CODECS[self.value])

    def _kept(self, codec: ValueCodec) -> ValueCodec:
        return HeadedValue(codec) if self.record_headers else codec

    @cached_property
    def with_headers(self) -> StoreSpec:
        """The same store for requests with ``headers=true``, if it keeps them."""
        shown = dataclasses.replace(self)
        if isinstance(self.value_codec, HeadedValue):
            vars(shown)["value_codec"] = self.value_codec.with_headers
        return shown

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
    def byte_cost(self) -> int:
        """How long it takes to write a stored byte as JSON, as a multiple of one that is JSON already."""
        return _DECODING_COST if self.value in DECODED_BY_SCHEMA else 1

    @property
    def needs_registry(self) -> bool:
        """Whether keys or values are decoded by the schemas of a registry."""
        return self.value in DECODED_BY_SCHEMA or self.key == AvroKey.name

    @cached_property
    def max_ahead_ms(self) -> int:
        """How far an end may be after its record's timestamp in the log, and still move stream time.

        Why by the record's own timestamp: every replica, replay and compaction decides alike, whenever it reads
        the record. Kafka bounds producers' timestamps the same way (KIP-937).
        """
        return _MAX_AHEAD_MS if self.timestamp_after_max_ms is None else self.timestamp_after_max_ms

    @cached_property
    def default_tolerance(self) -> Tolerance:
        """The tolerance of a read that states none."""
        return Tolerance(self.max_record_lag, self.max_time_lag_ms, self.max_age_ms)

    @cached_property
    def stored_keys(self) -> StoredKeys:
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
        return {name: value for name, (value, default) in mine.items() if value != default}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> StoreSpec:
        """The inverse of ``document``; members that this version does not know are ignored."""
        known = {item.name for item in _fields_of_readers()}
        return cls(**{name: value for name, value in document.items() if name in known})


def headed_topics(specs: Iterable[StoreSpec]) -> frozenset[str]:
    """The topics of the stores that keep headers of records."""
    return frozenset(spec.topic for spec in specs if spec.record_headers)


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
        return self._kept(TEXT_VALUE_CODECS[self.value])


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
