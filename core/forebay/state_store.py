"""The interface of a state store (KIP-1035): records and the offsets they came from, committed together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

from forebay.log_epochs import EpochStart, OffsetAndEpoch
from forebay.task_ids import TopicPartition
from forebay.unproven import UnprovenRanges, united


class StoreCorrupted(Exception):
    """A store's content cannot be used: its files are damaged or gone, or it cannot continue its changelog.

    The message says why. A store may raise it from any method; whoever holds the store sets it aside and rebuilds
    it from its changelog (Kafka Streams' ``TaskCorruptedException``).
    """


class CommittedOffset(NamedTuple):
    """A store's record of one changelog partition, as of its last commit."""

    position: int
    """Next offset to apply."""
    consistent_position: int | None = None
    """The last position that was a point of the log's history; None if there never was one."""
    pending_end: int | None = None
    """While a compacted replay is under way: the position at which it will be consistent again."""
    last_caught_up_epoch_ms: float | None = None
    """All records that were in the log at this wall-clock time are applied, of open transactions too."""
    as_of_epoch_ms: Mapping[str, int | None] = {}
    """Newest heartbeat's ``as_of_ms`` by writer; None while a writer cannot tell."""
    stream_time_ms: int | None = None
    """The largest window or session end, or version, applied."""
    restored: bool = False
    """Whether an end of the log was ever reached: until then a missing key proves nothing."""
    replay_since_epoch_ms: float | None = None
    """When the replay began, either at the log's beginning or at an offset written then: no tombstones written
    since were missed."""
    queries: Mapping[str, str] = {}
    """The query of each writer's newest heartbeat."""
    misplaced_keys: Sequence[str] = ()
    """Keys as in the log, in hexadecimal, that were found in a partition where the partitioner does not put
    them."""
    partitions_found: int | None = None
    """How many partitions the log was found to have, if not as many as the topology."""
    tombstone_floor: int = 0
    """The log's when it was last read: tombstones below it were either applied, or what they delete was removed
    before it was read."""
    end_reached_epoch_ms: float | None = None
    """All records that could be read at this wall-clock time are applied."""
    filling: Sequence[str] = ()
    """The writers that are filling the log with what their sources hold: until they end, a missing key proves
    nothing."""
    replay_beginning: int | None = None
    """Where the log began when the replay did, None in offsets of before."""
    proof: OffsetAndEpoch | None = None
    """The point after the last record applied, by which the log is recognised: a log without it is another, or was
    cut. None if no record was applied, or the log has no epochs."""
    epochs: Sequence[EpochStart] = ()
    """The newest epochs of the log, as far as records of them were applied."""
    unproven: Mapping[str, UnprovenRanges] = {}
    """By writer, the ends of entries whose last values the log may lack."""

    beat_epoch_ms: Mapping[str, int] = {}
    """When each writer's newest heartbeat was appended."""
    pending_epoch: int | None = None
    """The newest epoch of the log when ``pending_end`` was its end, None if unknown: a record before that end with
    a later one was not there then."""

    @property
    def unproven_by_any(self) -> UnprovenRanges:
        return united(chain.from_iterable(self.unproven.values()))

    @property
    def content_before(self) -> int:
        """An upper bound (exclusive) of the offsets in the store: before a replay is consistent, some may be
        ahead."""
        return max(self.position, self.pending_end or 0)

    def document(self) -> dict[str, Any]:
        """The offset as JSON values by name, as stores keep it; what is as by default is left out."""
        members = zip(self._fields, self, _DEFAULTS, strict=True)
        return {name: value for name, value, default in members if value != default}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> CommittedOffset:
        """The inverse of ``document``; members that this version does not know are ignored."""
        offset = cls(**{name: document[name] for name in cls._fields if name in document})
        if offset.proof is None:
            return offset
        epochs = tuple(EpochStart(*start) for start in offset.epochs)
        return offset._replace(proof=OffsetAndEpoch(*offset.proof), epochs=epochs)


_DEFAULTS = tuple(CommittedOffset._field_defaults.get(name, ...) for name in CommittedOffset._fields)
"""When a field need not be stored."""


class StateStore(Protocol):
    """One partition of one store on one worker.

    Puts and deletes collect until ``commit`` writes them together with the offsets that the store then has.
    Readers see committed records only. One thread writes; any thread reads.
    """

    name: str
    persistent: bool
    """Whether content outlives ``close``."""
    manages_offsets: bool
    """Whether ``committed_offset`` can be trusted: the offsets are as durable as the records."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a stored key, None if it has none."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of several stored keys, in order."""

    def scan(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values with ``start <= key < end``, in stored order or its reverse.

        The iterator sees the store as it was at one moment, which is not before the call.
        """

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value with the next commit."""

    def delete(self, key: bytes) -> None:
        """Remove a key with the next commit; it need not exist."""

    def commit(self, changelog_offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Write what was collected, and the offsets, all or nothing."""

    def committed_offset(self, topic_partition: TopicPartition) -> CommittedOffset | None:
        """The offset of the last commit, None if there is none or the store keeps none across ``close``."""

    def flush(self) -> None:
        """Make what was committed durable, for stores that do not manage their offsets."""

    def close(self) -> None:
        """Release files and locks; uncommitted changes are lost."""
