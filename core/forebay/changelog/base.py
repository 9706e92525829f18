"""What every changelog is to its readers: topics of partitions, records with offsets, ends with identities."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from forebay.changelog.sqlite.partition import heartbeat_key
from forebay.changelog.wake import Wake
from forebay.lag import EndOffset
from forebay.tasks import TopicPartition
from forebay.topology import StoreSpec

__all__ = [
    "Batch",
    "Changelog",
    "Consumer",
    "Heartbeat",
    "Record",
    "heartbeat_key",
]


Record = tuple[int, bytes, bytes | None, int, bool]
"""One record: offset, key, value (None is a tombstone), timestamp in epoch ms, whether it is a heartbeat.

A plain tuple, as the database hands it out: a class of its own would halve the speed of a replay.
"""


@dataclass(frozen=True)
class Heartbeat:
    """What a writer says after a batch or while idle: the source's state by ``as_of_ms`` is in the log.

    ``as_of_ms`` is epoch milliseconds, None as long as the writer cannot tell.
    """

    as_of_ms: int | None
    query_id: str
    batch_id: int

    def value(self) -> bytes:
        """The record value."""
        document = {"as_of_ms": self.as_of_ms, "query_id": self.query_id, "batch_id": self.batch_id}
        return json.dumps(document).encode()

    @classmethod
    def parse(cls, value: bytes) -> Heartbeat:
        """The inverse of ``value``; raises ``ValueError`` for what is no heartbeat."""
        document: Any = json.loads(value)
        try:
            beat = cls(document["as_of_ms"], document["query_id"], document["batch_id"])
        except (TypeError, KeyError):
            raise ValueError(f"{value[:80]!r} is no heartbeat") from None
        if not isinstance(beat.as_of_ms, int | None) or not isinstance(beat.query_id, str):
            raise ValueError(f"{value[:80]!r} is no heartbeat")
        return beat


class Batch(NamedTuple):
    """What one response of the log held for one partition: records in offset order, and the end it showed."""

    topic_partition: TopicPartition
    records: list[Record]
    position: int
    """Next offset to read after these records."""
    gap: bool
    """Whether offsets are missing between the position read from and ``position``."""
    end: EndOffset
    beginning: int
    """The first offset the log still promises to hold."""
    tombstone_floor: int
    """A replica below this offset may have missed tombstones that compaction removed."""
    identity: str
    """The log's identity; another one than before means another log."""
    tombstone_life_ms: float | None = None
    """A replica that was last consistent longer ago may have missed tombstones; None where ``tombstone_floor``
    says so."""
    partitions: int | None = None
    """How many partitions the topic has by now; None where that cannot change."""
    settled: bool = False
    """Whether the log could be read up to ``position`` and no further by a response as new as any with a gap:
    the successor of a value that compaction took is not beyond it, though a transaction may still be open."""


class Consumer(Protocol):
    """Reads assigned partitions from positions of its own choosing. One thread uses it."""

    def assign(self, topic_partition: TopicPartition, position: int) -> None:
        """Read a partition from this position on, from the next poll."""
        ...

    def unassign(self, topic_partition: TopicPartition) -> None:
        """Stop reading a partition."""
        ...

    def wait(self, wake: Wake, timeout_s: float) -> None:
        """Return when something may be new, when ``wake`` is set, or after the time-out at the latest."""
        ...

    def poll(self, max_records: int) -> Iterable[Batch]:
        """What is new, up to this many records a partition, with an end observation for each reached one.

        A partition whose log cannot be reached is left out, so its lag grows by itself, and so may be one in which
        nothing is new. Logs may be read only as their batches are taken.
        """
        ...

    def current(self) -> tuple[float, list[TopicPartition]]:
        """A time (boot clock) and partitions in which, by then, nothing was that no batch had brought.

        Their last batch still says where they end. It costs next to nothing for each, unlike a batch.
        """
        ...

    def close(self) -> None:
        """Release connections."""
        ...


class Changelog(Protocol):
    """A set of topics, each with partitions and an identity."""

    url: str

    def ensure(self, spec: StoreSpec, *, create: bool = True) -> None:
        """Create a store's topic unless it is there.

        Raises ``PartitionCountMismatch`` if its count differs, ``TopicRefused`` if it would lose records,
        ``TopicMissing`` with ``create`` off, and ``ChangelogUnreachable``.
        """
        ...

    def ensure_group(self, application_id: str) -> str | None:
        """Create what a worker group needs beside its stores' topics; says its name, None if it needs nothing."""
        ...

    def identity(self, topic: str, partition: int | None = None) -> str:
        """The identity of a topic, or of one partition's log; raises ``TopicMissing``."""
        ...

    def consumer(self, *, replay: bool = False) -> Consumer:
        """A new reader; one for a ``replay`` reads further ahead."""
        ...

    def end_offsets(self, topic_partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The current ends; partitions that cannot be reached are left out."""
        ...

    def append_heartbeat(self, topic: str, *, writer: str, query_id: str, value: bytes) -> dict[int, int]:
        """Append a heartbeat to every partition; returns the next offset of each that is of the topic's identity.

        Raises ``BatchConflict`` where another query took over as ``writer``.
        """
        ...

    def retire_writer(self, topic: str, writer: str) -> None:
        """Take a writer that is gone for good out of the store's age.

        Raises ``ChangelogError`` where it is known that nobody wrote under that name.
        """
        ...

    def reset(self, spec: StoreSpec) -> str:
        """Empty a store's topic and give it a new identity; every replica is rebuilt. Returns the identity."""
        ...
