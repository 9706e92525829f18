"""Expiry: deletes entries past their store's retention."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice, pairwise

from forebay.retention import history_begins_ms, oldest_kept_ms
from forebay.stored_keys import END_OF_USER_KEYS, RESERVED_TAG, USER_TAG
from forebay.stores import StateStore
from forebay.topology import StoreSpec
from forebay_worker.tasks.replica import Replica

_SWEPT_KEY = RESERVED_TAG + b"swept"
_ENTRIES_PER_SWEEP = 2_000
_PASSES_PER_HISTORY = 16
"""How much (as a fraction of its retention) a versioned store may exceed its minimum size."""


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

    def sweep(self, replica: Replica) -> int:
        """Continue through a replica's store, in the applier's thread; returns the number of entries deleted."""
        spec, store = replica.spec, replica.store
        versioned = spec.kind == "versioned"
        oldest = (history_begins_ms if versioned else oldest_kept_ms)(spec, replica.stream_time_ms)
        if oldest is None:
            return 0
        search = self._searches.get(id(replica))
        if search is None or search.store is not store:
            # A rebuilt one begins with another stream time.
            search = self._searches[id(replica)] = _Search(store)
        at = search.under_way
        if at is None:
            step_ms = spec.window_size_ms or spec.gap_ms or _part_of_history_ms(spec)
            if search.done_to_ms is not None and oldest - search.done_to_ms < step_ms:
                return 0
            at = search.under_way = _Pass(oldest)
        seen = [key for key, _ in islice(store.scan(at.start, END_OF_USER_KEYS), _ENTRIES_PER_SWEEP)]
        expired = _superseded(spec, seen, at.oldest_ms) if versioned else _ended(spec, seen, at.oldest_ms)
        for key in expired:
            store.delete(key)
        if expired:
            if replica.swept_to_ms is None or replica.swept_to_ms < at.oldest_ms:
                # With a longer retention, it is still to be known that there was more.
                store.put(_SWEPT_KEY, b"%d" % at.oldest_ms)
                replica.swept_to_ms = at.oldest_ms
            store.commit({})
        if len(seen) < _ENTRIES_PER_SWEEP:
            search.under_way, search.done_to_ms = None, at.oldest_ms
        else:
            # Only the next version shows whether one is superseded.
            at.start = seen[-1] if versioned else seen[-1] + b"\x00"
        return len(expired)

    def forget(self, replica: Replica) -> None:
        """Drop the state kept for a released replica."""
        self._searches.pop(id(replica), None)


def _part_of_history_ms(spec: StoreSpec) -> int:
    return max(1, (spec.history_retention_ms or 0) // _PASSES_PER_HISTORY)


def _ended(spec: StoreSpec, seen: list[bytes], oldest_ms: int) -> list[bytes]:
    """The windows or sessions that ended too long ago."""
    parse = spec.stored_keys.parse
    return [key for key in seen if parse(key).times_ms[0] < oldest_ms]


def _superseded(spec: StoreSpec, seen: list[bytes], begins_ms: int) -> list[bytes]:
    """The versions whose successor was already in force when history begins."""
    keys = spec.stored_keys
    return [
        version
        for version, following in pairwise(seen)
        if keys.prefix_of(version) == keys.prefix_of(following) and keys.parse(following).times_ms[0] <= begins_ms
    ]
