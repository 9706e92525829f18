"""A replica: one partition of one store on this worker, and how far it is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay.clock import boot_ms
from forebay.lag import EMPTY_PROGRESS, EndOffsets
from forebay.state_store import StateStore
from forebay.store_spec import StoreSpec
from forebay.task_ids import TaskId, TopicPartition
from forebay_changelog import Batch
from forebay_web.follower_wakeups import Waker, follower_turns
from forebay_worker.tasks.phases import ReplicaPhase, check_transition
from forebay_worker.tasks.recent_changes import RecentChanges
from forebay_worker.tasks.replica_view import ReplicaView

log = logging.getLogger(__name__)
_CHECKPOINT_INTERVAL_MS = 60_000.0
_CHECKPOINT_BY_TOMBSTONE_LIFE = 0.1
NO_EPOCHS = (
    "The log's records have no epochs, so it cannot prove that it is the one that was left when a worker starts. "
    "Upgrade the brokers, and the topic's message format, to Kafka 0.11 or later."
)
_LONG_OPEN_MS = 10_000.0
_TRANSACTION_OPEN = (
    "a transaction has been open for more than ten seconds, so nothing after its first record is served. "
    "kafka-transactions.sh describe-producers --topic {} --partition {} names the producer. find-hanging and "
    "abort end what was left open."
)
_END_KNOWN_FOR_MS = 2_000.0
"""An end observed more recently is known, though the records before it cannot be read."""


class KeyWatchers:
    """The watched keys of one replica, each as the prefix of its stored keys; None for any key.

    The event loop watches and is woken there; the applier's thread reports changes. That costs one look-up per
    changed key, and nothing while there are no watches.
    """

    def __init__(self) -> None:
        self._wakers: defaultdict[bytes | None, set[Waker]] = defaultdict(set)
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def watching(self, prefix: bytes | None, wake: Waker) -> Iterator[None]:
        """Have ``wake`` called, in the event loop, after each change of a key."""
        self._loop = asyncio.get_running_loop()
        self._wakers[prefix].add(wake)
        try:
            yield
        finally:
            self._wakers[prefix].discard(wake)
            if not self._wakers[prefix]:
                del self._wakers[prefix]

    def wake(self, changed: Iterable[bytes]) -> None:
        """Wake those that watch one of these keys; in any thread, once the change can be read."""
        if not self._wakers:
            return
        prefixes = set(changed)
        if prefixes:
            self._call({prefix for prefix in (None, *prefixes) if prefix in self._wakers})

    def wake_all(self) -> None:
        """Wake all: it is not known what changed."""
        if self._wakers:
            self._call(set(self._wakers.copy()))

    def _call(self, watched: set[bytes | None]) -> None:
        if not watched:
            return
        # A closed loop has nothing left to wake.
        with contextlib.suppress(RuntimeError):
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._begin, watched)

    def _begin(self, watched: set[bytes | None]) -> None:
        follower_turns().add(*(wake for prefix in watched for wake in self._wakers.get(prefix, ())))


def _note_nothing(log: str) -> None:
    """A store that keeps no identity."""


def _ignore_damage(replica: Replica, store: StateStore, reason: str) -> None:
    """A store that nothing could rebuild."""


@dataclass
class RecordCounts:
    """What has become of a log's records."""

    applied: int = 0
    skipped: int = 0
    """Those of an external store that its codecs could not read."""
    ahead: int = 0
    """Those whose time was too far after their own timestamp to move stream time."""


@dataclass
class Replica:
    """One store partition, how far it is, and what brings it forward.

    The applier's thread is the one writer, but for ``designated_boot_ms`` and ``admitted``. Reads take ``view``.
    """

    task: TaskId
    view: ReplicaView
    """What reads see; ``publish`` replaces it."""
    designated_boot_ms: float | None = None
    """Since when the newest known generation designates this replica active; None if it does not."""
    phase: ReplicaPhase = ReplicaPhase.CREATED
    """What brings it forward."""
    retry_boot_ms: float = 0.0
    """When that is tried again, while it is suspended or its rebuild cannot begin."""
    in_place: bool = False
    """Whether a store that is not trusted still has to be set aside before its rebuild can begin."""
    copied_boot_ms: float = -math.inf
    """When a copy of another worker's store last took its place."""
    not_in_bulk_until_boot_ms: float = 0.0
    """Until when it is not restored in bulk, because restore processes failed."""
    ends: EndOffsets = field(default_factory=EndOffsets)
    last_checkpoint_boot_ms: float = 0.0
    """When a commit last recorded up to when the log was read."""
    checkpoint_interval_ms: float = _CHECKPOINT_INTERVAL_MS
    records: RecordCounts = field(default_factory=RecordCounts)
    """Since its store was opened or begun anew."""
    tombstone_life_ms: float | None = None
    log_notices: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with its log although that can be read, by kind."""
    proves_itself: bool | None = None
    """Whether the log's records have epochs, by which a log that was cut is noticed; None until one was read."""
    failure: str | None = None
    """Why the last attempt to apply records failed; None after a success."""
    storage_fault: str | None = None
    """What the machine refuses, and the remedy, if that is why."""
    read_failure: str | None = None
    """Why its log cannot be read; None while it can."""
    key_watchers: KeyWatchers = field(default_factory=KeyWatchers)
    identify: Callable[[str], None] = _note_nothing
    """Makes the store record, from its next commit on, which log it was built from."""

    on_corrupted: Callable[[Replica, StateStore, str], None] = _ignore_damage
    """Has this replica's store rebuilt, which was found damaged, and why; any thread may call it, repeatedly."""

    predecessor: Replica | None = None
    """What is served until an end of the log is reached: the store as it was before, which cannot be continued."""

    admitted: Any = None
    """The replica's state as found by the last read, cached by the queries while valid."""

    walk: Any = None
    """How far the sweep of its store is."""

    @classmethod
    def opened(
        cls,
        spec: StoreSpec,
        task: TaskId,
        store: StateStore,
        log: str | None = None,
        identify: Callable[[str], None] = _note_nothing,
    ) -> Replica:
        """A replica whose store has just been opened: how far that is, is not known yet."""
        return cls(
            task,
            ReplicaView(EMPTY_PROGRESS, spec, store, log, RecentChanges(has_ttl=spec.ttl_ms is not None)),
            identify=identify,
        )

    @property
    def spec(self) -> StoreSpec:
        """The store that it is a partition of."""
        return self.view.spec

    def publish(self, **changes: Any) -> None:
        """Replace what reads see, with some fields changed at once."""
        self.view = self.view._replace(**changes)

    @property
    def topic_partition(self) -> TopicPartition:
        """The changelog partition that the replica replays."""
        return TopicPartition(self.spec.topic, self.task.partition)

    def enter(self, phase: ReplicaPhase) -> None:
        """Change the phase; raises ``PhaseError`` if it cannot follow the present one."""
        check_transition(self.phase, phase)
        self.phase = phase

    @property
    def writable(self) -> bool:
        """Whether its store is open and accepts writes, as far as is known."""
        return self.storage_fault is None and self.phase not in (ReplicaPhase.REBUILDING, ReplicaPhase.CLOSED)

    @property
    def served(self) -> Replica:
        """The one that answers reads."""
        return self if self.predecessor is None else self.predecessor

    @property
    def stopped_by(self) -> str | None:
        """Why records are not applied, None if they are."""
        return self.failure if self.read_failure is None else self.read_failure

    @property
    def notices(self) -> dict[str, str]:
        """What is wrong with the log or with where keys are, and the remedy, by kind."""
        doubt = self.served.view.doubt
        found = dict(self.log_notices) if doubt is None else {**self.log_notices, doubt.problem.name: doubt.text}
        if self.proves_itself is False:
            found["log-without-epochs"] = NO_EPOCHS
        if self.open_transaction_ms(boot_ms()) > _LONG_OPEN_MS:
            found["transaction-open"] = _TRANSACTION_OPEN.format(*self.topic_partition)
        return found

    def note_read_failure(self, reason: str | None, now_boot_ms: float) -> None:
        """Take over whether the log can be read; if its end is not learnt either, it is not known."""
        self.read_failure = reason
        view = self.view
        if reason is None or now_boot_ms - view.progress.end_sent_boot_ms < _END_KNOWN_FOR_MS:
            return
        self.ends.clear()
        unknown = view.progress._replace(end_offset=None, high_watermark=None)
        self.publish(was_checked=view.checked, progress=unknown)
        if self.predecessor is not None:
            self.predecessor.note_read_failure(reason, now_boot_ms)

    def designate(self, since_boot_ms: float | None) -> None:
        """Note since when it is designated active, None if it is not."""
        self.designated_boot_ms = since_boot_ms
        if self.predecessor is not None:
            self.predecessor.designated_boot_ms = since_boot_ms

    def serve_predecessor(self, former: Replica) -> None:
        """Have a former state of this replica answer its reads, in this one's role."""
        self.predecessor = former
        while former.designated_boot_ms != self.designated_boot_ms:
            # It may have changed since the copy was made. Whoever changes it from now on knows of both.
            former.designated_boot_ms = self.designated_boot_ms

    def learn_log(self, log: str) -> None:
        """Record its log's identity with the next commit, if that was not known when it was opened."""
        if self.view.log is None:
            # First: if that fails, it is done again.
            self.identify(log)
            self.publish(log=log)

    def learn_tombstone_life(self, life_ms: float | None) -> None:
        """Record how long the log keeps tombstones: a start must find a moment well within that time."""
        self.tombstone_life_ms = life_ms
        every_ms = _CHECKPOINT_INTERVAL_MS if life_ms is None else life_ms * _CHECKPOINT_BY_TOMBSTONE_LIFE
        self.checkpoint_interval_ms = min(_CHECKPOINT_INTERVAL_MS, every_ms)

    def open_transaction_ms(self, now_boot_ms: float) -> float:
        """For how long at least a transaction has been open at the log's end; 0 if none is."""
        since = self.ends.open_since_boot_ms
        return 0.0 if since is None else max(0.0, now_boot_ms - since)

    def is_checkpoint_due(self, now_boot_ms: float) -> bool:
        """Whether a commit is due only to record up to when the log was read."""
        return now_boot_ms - self.last_checkpoint_boot_ms > self.checkpoint_interval_ms

    def learn_partitions(self, found: int | None) -> None:
        """Record how many partitions the log has: once there are more, keys go to different ones."""
        if found is not None and found != self.view.partitions_found:
            self.publish(partitions_found=found)
            if self.view.repartitioned:
                log.error(
                    "%s now has %d partitions, but the topology has %d: new records of a key may be in "
                    "another partition, so misses are refused, and so are bounds. Give the store a new name and a "
                    "log of that size.",
                    self.spec.topic,
                    found,
                    self.spec.partitions,
                )

    def invalidate(self) -> None:
        """Its content is not that of the log, or is lost: nothing found out about it holds any more."""
        self.view = self.view.as_lost()
        # It would keep the former store.
        self.admitted = None
        self.ends.clear()
        self.records = RecordCounts()

    def note_ahead(self, records: int) -> None:
        """Count records whose time is too far after their own timestamp; the first are logged."""
        if records and not self.records.ahead:
            log.warning(
                "%s: a record's time is more than %d ms after its own timestamp in the log. It is kept and "
                "served, but nothing expires by it. If such times are meant, raise timestamp_after_max_ms of the "
                "store %r.",
                self.topic_partition,
                self.spec.max_ahead_ms,
                self.spec.name,
            )
        self.records.ahead += records

    def doubt_keys(self, misplaced_keys: tuple[bytes, ...]) -> None:
        """Record which keys are in another partition than the partitioner's; the first ones are logged."""
        known = self.view.misplaced_keys
        if misplaced_keys == known:
            return
        self.publish(misplaced_keys=misplaced_keys)
        if misplaced_keys and not known:
            log.error(
                "%s: the key %r is in partition %d, where the partitioner %r does not put it; misses are refused, "
                "and so are bounds. Set the store's partitioner to the writer's, or to 'unknown'.",
                self.spec.name,
                misplaced_keys[0],
                self.task.partition,
                self.spec.partitioner,
            )
        elif known and not misplaced_keys:
            log.info("%s: the keys that another partitioner had put there were deleted", self.topic_partition)

    def learn_epochs(self, batch: Batch) -> None:
        """Record whether the log's records have epochs; that they have none is logged once."""
        if batch.records and self.proves_itself is not bool(batch.epochs):
            self.proves_itself = bool(batch.epochs)
            if not batch.epochs:
                log.warning("%s: %s", self.topic_partition, NO_EPOCHS)
