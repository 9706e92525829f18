"""Expiry: deletes what no read returns any more, replica by replica, for no longer than others can wait."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import islice, pairwise

from forebay.clock import boot_ms
from forebay.logs import LogThrottle
from forebay.state_store import StateStore, StoreCorrupted
from forebay.stored_keys import END_OF_USER_KEYS, RESERVED_TAG, USER_TAG
from forebay_worker.tasks.replica import Replica

log = logging.getLogger(__name__)

_SWEPT_KEY = RESERVED_TAG + b"swept"
_ENTRIES_PER_SWEEP = 2_000
_MIN_APPLIED = 1_000
_PART_APPLIED = 4
"""Superseded entries are searched again once as many records were applied as this part of the store's entries."""
_MAX_SWEEPING_MS = 10.0
_PATIENCE_WHERE_EXPIRED = 6
"""A sweep that deletes may take this many times longer: a store must not grow faster than it is swept."""


def swept_to_ms(store: StateStore) -> int | None:
    """Up to when a store's entries, or moments of its history, were deleted by any retention it ever had."""
    found = store.get(_SWEPT_KEY)
    return None if found is None else int(found)


@dataclass
class _Walk:
    """How far a store is searched: by the pass under way, and by the last complete one."""

    store: StateStore
    start: bytes | None = None
    """Where the pass under way continues; None between two."""
    begun_at: int | None = None
    """What the newest pass began with: the oldest time, or moment of history, that it keeps, or how many records
    had been applied. None before the first."""
    seen: int = 0
    """How many entries it has seen."""

    def begin(self, at: int) -> int:
        """Begin a pass; returns what it begins with."""
        self.start, self.begun_at, self.seen = USER_TAG, at, 0
        return at

    def entries(self) -> list[tuple[bytes, bytes]]:
        """The next ones."""
        assert self.start is not None
        return list(islice(self.store.scan(self.start, END_OF_USER_KEYS), _ENTRIES_PER_SWEEP))


def sweep(replica: Replica) -> int:
    """Delete some of what no read of a replica returns, in the applier's thread; returns how many entries.

    These are expired entries, and of a store with ``latest_by`` those that a higher order of their key has
    superseded. Each call continues through a few thousand entries.
    """
    if replica.walk is None or replica.walk.store is not replica.view.store:
        # A rebuilt one begins with another stream time.
        replica.walk = _Walk(replica.view.store)
    of_kind = _sweep_expired if replica.spec.latest_by is None else _sweep_superseded
    return of_kind(replica, replica.walk)


def _sweep_expired(replica: Replica, walk: _Walk) -> int:
    spec, store = replica.spec, walk.store
    rule = spec.store_kind.expiry
    oldest_ms = None if rule is None else rule.oldest_ms(spec, replica.view.stream_time_ms)
    if rule is None or oldest_ms is None:
        return 0
    kept_ms = walk.begun_at
    if walk.start is None or kept_ms is None:
        if kept_ms is not None and oldest_ms - kept_ms < rule.step_ms(spec):
            return 0
        kept_ms = walk.begin(oldest_ms)
    seen = walk.entries()
    expired = rule.expired(spec.stored_keys, seen, kept_ms)
    for key in expired:
        store.delete(key)
    if expired:
        swept_before_ms = swept_to_ms(store)
        if swept_before_ms is None or swept_before_ms < kept_ms:
            # With a longer retention, it is still to be known that there was more.
            store.put(_SWEPT_KEY, b"%d" % kept_ms)
            replica.publish(swept_to_ms=kept_ms)
        store.commit({})
        if spec.ttl_ms is not None:
            # No record tells followers of it.
            replica.view.recent_changes.note_expired(expired)
            replica.key_watchers.wake(expired)
    walk.start = None
    if len(seen) == _ENTRIES_PER_SWEEP:
        last, _ = seen[-1]
        walk.start = last if rule.by_successor else last + b"\x00"
    return len(expired)


def _sweep_superseded(replica: Replica, walk: _Walk) -> int:
    """What this leaves is the same to every read, so replicas need not agree on when they do it."""
    store, applied = walk.store, replica.records.applied
    if walk.start is None:
        if walk.begun_at is not None and applied - walk.begun_at < max(_MIN_APPLIED, walk.seen // _PART_APPLIED):
            return 0
        walk.begin(applied)
    seen = [key for key, _ in walk.entries()]
    prefix_of = replica.spec.stored_keys.prefix_of
    superseded = [one for one, following in pairwise(seen) if prefix_of(one) == prefix_of(following)]
    for key in superseded:
        store.delete(key)
    if superseded:
        store.commit({})
    walk.seen += len(seen) - 1
    # The last one is looked at again: the next one shows whether it is superseded.
    walk.start = seen[-1] if len(seen) == _ENTRIES_PER_SWEEP else None
    return len(superseded)


class Sweeper:
    """Deletes what is past retention, replica by replica; in the applier's thread.

    ``on_damaged(replica, error)`` is called if a store is found damaged; ``storage_fault(error)`` describes the
    machine's refusal behind an error, None if there is none.
    """

    def __init__(
        self,
        on_damaged: Callable[[Replica, StoreCorrupted], None],
        storage_fault: Callable[[Exception], str | None],
    ) -> None:
        self._on_damaged = on_damaged
        self._storage_fault = storage_fault
        self._to_sweep: deque[Replica] = deque()
        self._logged = LogThrottle()

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

    def _sweep(self, replica: Replica) -> int:
        """Delete some expired entries, and return how many; waits if the disk refuses."""
        if not replica.writable:
            return 0
        try:
            return sweep(replica)
        except StoreCorrupted as error:
            self._on_damaged(replica, error)
        except Exception as error:
            tp, fault = replica.topic_partition, self._storage_fault(error)
            # A disk that refuses does so for all.
            if self._logged.allow(fault or f"{tp}: {error}"):
                log.error("%s: expired entries could not be deleted: %s", tp, fault or error)
        return 0
