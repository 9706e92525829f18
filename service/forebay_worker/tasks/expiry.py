"""Expiry: deletes entries past their store's retention, replica by replica, for no longer than others can wait."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import islice

from forebay.clock import boot_ms
from forebay.state_store import StateStore, StoreCorrupted
from forebay.stored_keys import END_OF_USER_KEYS, RESERVED_TAG, USER_TAG
from forebay.task_ids import TopicPartition
from forebay_worker.tasks.replica import Replica
from forebay_worker.tasks.replica_events import HandleEvent, StoreDamaged
from forebay_worker.tasks.superseded_entries import SupersededSweep

log = logging.getLogger(__name__)

_SWEPT_KEY = RESERVED_TAG + b"swept"
_ENTRIES_PER_SWEEP = 2_000
_MAX_SWEEPING_MS = 10.0
_PATIENCE_WHERE_EXPIRED = 6
"""A sweep that deletes may take this many times longer: a store must not grow faster than it is swept."""


def swept_to_ms(store: StateStore) -> int | None:
    """Up to when a store's entries, or moments of its history, were deleted by any retention it ever had."""
    found = store.get(_SWEPT_KEY)
    return None if found is None else int(found)


@dataclass
class _Pass:
    """One walk over a store: where it continues, and the oldest time, or moment of history, that it keeps."""

    oldest_ms: int
    start: bytes = USER_TAG


@dataclass
class _Search:
    """How far a store was searched: by the pass under way, and by the last complete one."""

    store: StateStore
    under_way: _Pass | None = None
    done_to_ms: int | None = None


@dataclass
class Expiry:
    """Deletes expired entries a few thousand at a time; reads never return them anyway."""

    _searches: dict[int, _Search] = field(default_factory=dict)
    _superseded: SupersededSweep = field(default_factory=SupersededSweep)

    def sweep(self, replica: Replica) -> int:
        """Continue through a replica's store, in the applier's thread; returns the number of entries deleted."""
        spec, store = replica.spec, replica.view.store
        if spec.latest_by is not None:
            return self._superseded.sweep(replica)
        rule = spec.store_kind.expiry
        oldest = None if rule is None else rule.oldest_ms(spec, replica.view.stream_time_ms)
        if rule is None or oldest is None:
            return 0
        search = self._searches.get(id(replica))
        if search is None or search.store is not store:
            # A rebuilt one begins with another stream time.
            search = self._searches[id(replica)] = _Search(store)
        at = search.under_way
        if at is None:
            if search.done_to_ms is not None and oldest - search.done_to_ms < rule.step_ms(spec):
                return 0
            at = search.under_way = _Pass(oldest)
        seen = list(islice(store.scan(at.start, END_OF_USER_KEYS), _ENTRIES_PER_SWEEP))
        expired = rule.expired(spec.stored_keys, seen, at.oldest_ms)
        for key in expired:
            store.delete(key)
        if expired:
            swept_before_ms = swept_to_ms(store)
            if swept_before_ms is None or swept_before_ms < at.oldest_ms:
                # With a longer retention, it is still to be known that there was more.
                store.put(_SWEPT_KEY, b"%d" % at.oldest_ms)
                replica.publish(swept_to_ms=at.oldest_ms)
            store.commit({})
            if spec.ttl_ms is not None:
                # No record tells followers of it.
                replica.view.recent_changes.note_expired(expired)
                replica.key_watchers.wake(expired)
        if len(seen) < _ENTRIES_PER_SWEEP:
            search.under_way, search.done_to_ms = None, at.oldest_ms
        else:
            last, _ = seen[-1]
            at.start = last if rule.by_successor else last + b"\x00"
        return len(expired)

    def forget(self, replica: Replica) -> None:
        """Drop the state kept for a released replica."""
        self._searches.pop(id(replica), None)
        self._superseded.forget(replica)


class Sweeper:
    """Deletes what is past retention, replica by replica; in the applier's thread.

    ``handle(event)`` is called if a store is found damaged; ``storage_fault(error)`` describes the machine's
    refusal behind an error, None if there is none.
    """

    def __init__(self, handle: HandleEvent, storage_fault: Callable[[Exception], str | None]) -> None:
        self._handle = handle
        self._storage_fault = storage_fault
        self._expiry = Expiry()
        self._to_sweep: deque[Replica] = deque()
        self._failed: set[TopicPartition] = set()

    def sweep_some(self, replicas: Collection[Replica]) -> None:
        """Continue where the last sweep ended; at most once through all."""
        spent_ms = 0.0
        for _ in range(len(replicas)):
            if not self._to_sweep:
                self._to_sweep.extend(replicas)
            begun = boot_ms()
            removed = self._sweep(self._to_sweep.popleft())
            spent_ms += (boot_ms() - begun) / (_PATIENCE_WHERE_EXPIRED if removed else 1)
            if spent_ms >= _MAX_SWEEPING_MS:
                return

    def forget(self, replica: Replica) -> None:
        """Drop the state kept for a released replica."""
        self._expiry.forget(replica)
        self._failed.discard(replica.topic_partition)

    def _sweep(self, replica: Replica) -> int:
        """Delete some expired entries, and return how many; waits if the disk refuses."""
        if not replica.writable:
            return 0
        tp = replica.topic_partition
        try:
            removed = self._expiry.sweep(replica)
        except StoreCorrupted as error:
            self._handle(StoreDamaged.of(replica, error))
            return 0
        except Exception as error:
            if tp not in self._failed:
                self._failed.add(tp)
                log.error("%s: expired entries could not be deleted: %s", tp, self._storage_fault(error) or error)
            return 0
        self._failed.discard(tp)
        return removed
