"""The interface of every changelog: topics of partitions, records with offsets, ends with identities."""

from __future__ import annotations

import contextlib
import os
import select
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from forebay.backend_registry import load_backend
from forebay.errors import ChangelogError, TopicMissing
from forebay.lag import EndOffset
from forebay.log_epochs import EpochStart, OffsetAndEpoch, epoch_before
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay.unproven import UnprovenRanges, united


class Wake:
    """A flag like ``threading.Event`` that a signal handler may set: eventfd(2)."""

    def __init__(self) -> None:
        self._flag = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Only once the last reference is gone: a late ``set`` must not write into a reused descriptor.
        weakref.finalize(self, os.close, self._flag)

    def set(self) -> None:
        """Wake all waiters; later waits return at once, until it is cleared."""
        os.eventfd_write(self._flag, 1)

    def clear(self) -> None:
        """Clear the flag."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._flag)

    def is_set(self) -> bool:
        """Whether it was set since it was last cleared."""
        return self.wait(0)

    def wait(self, timeout_s: float) -> bool:
        """Return when it is set, or after the time-out, then with False."""
        poll = select.poll()
        poll.register(self._flag, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))


Record = tuple[int, bytes, bytes | None, int, bool]
"""One record: offset, key, value (None is a tombstone), timestamp in epoch ms, whether it is a heartbeat.

A plain tuple, as the database returns it: a class of its own would halve the speed of a replay.
"""

Rows = Mapping[int, Iterable[tuple[bytes, bytes | None]]]
"""The keys and values of a batch by partition, in the order in which they are appended; None is a tombstone. They
are read once."""

CHANGELOG_ENTRY_POINTS = "forebay.changelogs"
"""The entry points of functions ``(url: str, *, create: bool) -> Changelog``. Each is named after the scheme of
its URLs, and raises as ``open_changelog`` does.

A package that registers one here also registers its worker group in ``forebay.memberships``, and the way in which
Spark writes it in ``forebay.destinations``, under the same name.
"""


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """Written after a batch or while idle, it states that the source's data up to ``as_of_ms`` is in the log.

    ``as_of_ms`` is epoch milliseconds, None while the writer cannot tell. While a writer is ``filling`` the log
    with what its source already holds, a key that is not in the log yet may exist. ``lineage`` identifies the
    attempt at the batch, for a writer that goes on from its own heartbeats.

    A writer that follows a state states the ``unproven`` ranges of what ended while it was away. Of all else that
    ended by ``watermark_ms``, epoch milliseconds, the log has the last values.
    """

    as_of_ms: int | None
    query_id: str
    batch_id: int
    filling: bool = False
    lineage: str | None = None
    watermark_ms: int | None = None
    unproven: UnprovenRanges = ()

    def value(self) -> bytes:
        """The record value."""
        return msgspec.json.encode(self)

    @classmethod
    def parse(cls, value: bytes) -> Heartbeat:
        """The inverse of ``value``; raises ``ValueError`` if it is not a heartbeat."""
        try:
            beat = _decode_heartbeat(value)
        except msgspec.DecodeError:
            raise ValueError(f"{value[:80]!r} is not a heartbeat") from None
        return msgspec.structs.replace(beat, unproven=united(beat.unproven)) if beat.unproven else beat


_decode_heartbeat = msgspec.json.Decoder(Heartbeat).decode


class Batch(NamedTuple):
    """The part of a response that concerns one partition: records in offset order, and the observed end."""

    topic_partition: TopicPartition
    records: list[Record]
    position: int
    """Next offset to read after these records."""
    gap: bool
    """Whether offsets are missing between the position read from and ``position``."""
    end: EndOffset
    beginning: int
    """The first offset that the log still guarantees to contain."""
    tombstone_floor: int
    """A replica below this offset may have missed tombstones that compaction removed."""
    identity: str
    """The log's identity; a different one means a different log."""
    tombstone_life_ms: float | None = None
    """A replica last consistent longer ago than this may have missed tombstones; None if ``tombstone_floor``
    decides."""
    partitions: int | None = None
    """How many partitions the topic has now; None if that cannot change."""
    end_reached: bool = False
    """Whether a response at least as new as any with a gap could read the log up to ``position`` and no further:
    the successor of a value that compaction removed is not beyond it, though a transaction may still be open."""
    truncated: bool = False
    """Whether the log has lost records that were read, even if it has grown past them since."""
    is_beginning_fixed: bool = False
    """Whether nothing but an operator moves the log's beginning: then one that moved has lost records."""
    epochs: tuple[EpochStart, ...] = ()
    """The epochs of the records; empty where the log has none, so that it cannot prove itself."""
    skipped_to: int = 0
    """The offset after the last record that was read but left out, 0 if none was."""

    @property
    def read_to(self) -> int:
        """The offset after the last record, if it was left out too; 0 if there was none."""
        return max(self.records[-1][0] + 1 if self.records else 0, self.skipped_to)

    def proof(self, before: OffsetAndEpoch | None) -> OffsetAndEpoch | None:
        """Where a reader stands after these records, as ``Consumer.assign`` takes it.

        Why it is not the position: that may be behind a transaction's marker of a later epoch.
        """
        if not self.read_to:
            return before
        epoch = epoch_before(self.epochs, self.read_to)
        return None if epoch is None else OffsetAndEpoch(self.read_to, epoch)

    def slices(self, max_records: int) -> Iterator[Batch]:
        """The same in parts of at most this many records; only the last says what is true of the whole."""
        count = len(self.records)
        if count <= max_records:
            yield self
            return
        for first in range(0, count - max_records, max_records):
            part = self.records[first : first + max_records]
            yield self._replace(records=part, position=part[-1][0] + 1, end_reached=False)
        yield self._replace(records=self.records[first + max_records :])


class ReadFailure(NamedTuple):
    """Why a partition cannot be read."""

    reason: str
    """What happened, to what, and the remedy."""
    lasting: bool
    """Whether it does not go away by itself, as a broker's absence does."""


class Consumer(Protocol):
    """Reads assigned partitions from positions of the caller's choosing. Used by one thread."""

    def assign(self, topic_partition: TopicPartition, position: int, proof: OffsetAndEpoch | None = None) -> None:
        """Read a partition from this position on, from the next poll.

        ``proof`` is the point after the last record that was read before. Nothing is returned, no end either,
        until the log is known to have that record: if it does not, or has another between that and the position,
        the batch says that it is ``truncated``.
        """

    def unassign(self, topic_partition: TopicPartition) -> None:
        """Stop reading a partition."""

    def wait(self, wake: Wake, timeout_s: float) -> None:
        """Return when there may be something new, when ``wake`` is set, or at the latest after the time-out."""

    def poll(self, max_records: int) -> Iterable[Batch]:
        """What is new, at most this many records per partition, with an end observation for each one reached.

        A partition whose log cannot be reached is left out, so its lag grows by itself; so may be one with nothing
        new. Logs may be read lazily, as the batches are consumed.
        """

    def failures(self) -> dict[TopicPartition, ReadFailure]:
        """Why assigned partitions cannot be read; what passes within seconds is left out."""

    def notices(self, specs: Mapping[str, StoreSpec]) -> dict[TopicPartition, dict[str, str]]:
        """What is wrong with logs that can be read, by kind: a sentence, then the remedy.

        ``specs`` are the stores by topic.
        """

    def current(self) -> tuple[float, list[TopicPartition]]:
        """A time (boot clock), and partitions of which batches had delivered everything by then.

        Their last batch still states their end. Unlike a batch, this costs next to nothing for each.
        """

    def close(self) -> None:
        """Release connections."""


@dataclass(frozen=True)
class CompactionLimits:
    """How long ago a record must have been written before compaction removes it, in milliseconds.

    That is ``delete_retention_ms`` for tombstones and ``min_compaction_lag_ms`` for all others; for those that
    expire by their store's retention, that retention plus a day.
    """

    min_compaction_lag_ms: int = 3_600_000
    delete_retention_ms: int = 86_400_000


class Changelog(Protocol):
    """A set of topics, each with partitions and an identity."""

    url: str
    """Where it is. Its scheme is that of its backend."""
    compacted: str
    """What has become of the records that ``compact`` counts, for its operator, such as ``removed``."""

    def compactor(self, spec: StoreSpec) -> Changelog | None:
        """Itself, if it compacts a store's log; None if servers do by themselves."""

    def compact(
        self, spec: StoreSpec, limits: CompactionLimits = ..., on_partition: Callable[[], None] = ...
    ) -> int:
        """Remove from a store's log what is no longer needed, or mark it as such for the servers that do; returns
        the number of records.

        ``limits`` are those of a log that no server compacts. ``on_partition`` is called after each partition.
        Raises ``ChangelogError`` if a partition could not be compacted.
        """

    def compacted_ms(self, topic: str) -> int | None:
        """When any process last compacted a whole topic, in epoch milliseconds; None if that is not known."""

    def ensure(self, spec: StoreSpec, *, create: bool = True) -> None:
        """Create a store's topic unless it is there; that of an external store is its owner's to create.

        Raises ``PartitionCountMismatch`` if its count differs, ``TopicRefused`` if it would lose records,
        ``TopicMissing`` with ``create`` off or for an external store, and ``ChangelogUnreachable``.
        """

    def forget_expired(self, spec: StoreSpec) -> bool:
        """Have the servers of a store's topic delete what has expired by its ``ttl_ms``; returns whether that was
        changed.

        Raises ``TopicMissing`` and ``ChangelogUnreachable``.
        """

    def ensure_group(self, application_id: str) -> str | None:
        """Create what a worker group needs besides its stores' topics; returns its name, None if it needs
        nothing."""

    def identity(self, topic: str, partition: int | None = None) -> str:
        """The identity of a topic, or of one partition's log; raises ``TopicMissing``."""

    def identities(self, topic: str) -> dict[int, str]:
        """The identity of each partition's log; raises ``TopicMissing`` and ``ChangelogUnreachable``.

        One that differs from the topic's was lost, or a reset is under way.
        """

    def consumer(self, *, replay: bool = False, headed: Collection[str] = ()) -> Consumer:
        """A new reader; for a ``replay`` it reads one partition at a time, further ahead.

        Values of the topics that are ``headed`` come with the headers of their records, as ``headed`` of
        ``forebay.codecs.values`` writes them.
        """

    def end_offsets(self, topic_partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The current ends; partitions that cannot be reached are left out."""

    def append_heartbeat(
        self,
        topic: str,
        *,
        writer: str,
        query_id: str,
        value: bytes,
        identities: Mapping[int, str] | None = None,
    ) -> dict[int, int]:
        """Append a heartbeat to every partition; returns the next offset of each that has the topic's identity.

        Raises ``BatchConflict`` if another query took over as ``writer``, or if a partition that can be lost alone
        has another identity than these ``identities`` say.
        """

    def append_batch(
        self,
        topic: str,
        *,
        writer: str,
        query_id: str,
        batch_id: int | None,
        rows: Rows,
        heartbeat: bytes,
    ) -> dict[int, int]:
        """Append rows, and after them a heartbeat to every partition; returns next offsets as
        ``append_heartbeat``.

        On Kafka all of it is one transaction. On SQLite each partition's rows are one, with a marker of the batch:
        if it is repeated, rows that are there already are not appended again. Without a ``batch_id`` they have no
        marker. Raises ``BatchConflict`` if another query took over as ``writer``, ``ChangelogError`` else.
        """

    def append_deletions(self, topic_partition: TopicPartition, keys: Sequence[tuple[bytes, int]]) -> int:
        """Append a tombstone for each key, with its timestamp in epoch milliseconds, 0 for now; returns the next
        offset.

        They are an operator's, of no writer: they fence none, and say nothing about the source. Raises
        ``ChangelogError``.
        """

    def last_heartbeat(self, topic: str, writer: str) -> Heartbeat | None:
        """A writer's newest heartbeat; None if it has written none, or was retired. Raises ``ChangelogError``."""

    def last_heartbeats(self, topic: str, writer: str) -> list[Heartbeat | None]:
        """The same of each partition: one that has an older one than others may have lost records."""

    def has_written(self, topic: str, *, writer: str, query_id: str) -> bool | None:
        """Whether the log has a batch or a heartbeat of a query under a writer's name; None if that is not known.

        False for a log of which a partition was lost. Raises ``ChangelogError``.
        """

    def writers(self, topic: str) -> set[str]:
        """The writers of a topic, without those that were retired; raises ``ChangelogError``."""

    def retire_writer(self, topic: str, writer: str, *, completed: bool = False) -> None:
        """Remove a writer that is gone for good from the store's age.

        ``completed`` notes that it has written all that it had to. Raises ``ChangelogError`` if it is known that
        nothing was written under that name.
        """

    def has_completed(self, topic: str, writer: str) -> bool:
        """Whether the log still shows that a writer was retired as ``completed``.

        False for a log of which a partition was lost since. Raises ``ChangelogError``.
        """

    def reset(self, spec: StoreSpec) -> str:
        """Empty a store's topic and give it a new identity; every replica is rebuilt. Returns the identity."""


def open_changelog(url: str, *, create: bool = True) -> Changelog:
    """The changelog at a URL, such as ``sqlite:///DIR`` or ``kafka://HOST:PORT,…``.

    Its scheme decides which installed backend opens it. Raises ``SettingError``, ``ExtraMissing`` if the
    backend's packages are not installed, and without ``create`` ``ChangelogError`` if there is none.
    """
    changelog: Changelog = load_backend(CHANGELOG_ENTRY_POINTS, url, "changelog")(url, create=create)
    return changelog


def missing_external(spec: StoreSpec) -> TopicMissing:
    """The error for an external store without a topic: creating one would hide a misspelt name behind misses."""
    return TopicMissing(
        f"There is no topic {spec.topic!r}. The store {spec.name!r} is external, so its owner creates it: is its "
        "name in the topology right?"
    )


def unknown_writer(topic: str, writer: str, known: Iterable[str]) -> ChangelogError:
    """The error for a writer's name under which nothing was written, or which was retired."""
    names = ", ".join(sorted(known)) or "none"
    return ChangelogError(f"There is no writer {writer!r} of {topic!r}; its writers are {names}.")
