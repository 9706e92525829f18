"""Expiry: deletes entries past their store's retention."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice, pairwise

from forebay.retention import history_begins_ms, oldest_kept_ms
from forebay.stored_keys import END_OF_USER_KEYS, USER_TAG
from forebay.topology import StoreSpec
from forebay_worker.tasks.replica import Replica

_ENTRIES_PER_SWEEP = 2_000
_PASSES_PER_HISTORY = 16
"""How much (as a fraction of its retention) a versioned store may exceed its minimum size."""


@dataclass
class _Pass:
    """One walk over a store: where it continues, and the oldest time, or moment of history, that it keeps."""

    oldest_ms: int
    start: bytes = USER_TAG


@dataclass
class Expiry:
    """Deletes expired entries a few thousand at a time; reads never return them anyway."""

    _passes: dict[int, _Pass] = field(default_factory=dict)
    _done: dict[int, int] = field(default_factory=dict)

    def sweep(self, replica: Replica) -> int:
        """Continue through a replica's store, in the applier's thread; returns the number of entries deleted."""
        spec = replica.spec
        versioned = spec.kind == "versioned"
        oldest = (history_begins_ms if versioned else oldest_kept_ms)(spec, replica.stream_time_ms)
        if oldest is None:
            return 0
        at = self._passes.get(id(replica))
        if at is None:
            step_ms = spec.window_size_ms or spec.gap_ms or _part_of_history_ms(spec)
            if oldest - self._done.get(id(replica), oldest - step_ms) < step_ms:
                return 0
            at = self._passes[id(replica)] = _Pass(oldest)
        seen = [key for key, _ in islice(replica.store.scan(at.start, END_OF_USER_KEYS), _ENTRIES_PER_SWEEP)]
        expired = _superseded(spec, seen, at.oldest_ms) if versioned else _ended(spec, seen, at.oldest_ms)
        for key in expired:
            replica.store.delete(key)
        if expired:
            replica.store.commit({})
        if len(seen) < _ENTRIES_PER_SWEEP:
            del self._passes[id(replica)]
            self._done[id(replica)] = at.oldest_ms
        else:
            # Only the next version shows whether one is superseded.
            at.start = seen[-1] if versioned else seen[-1] + b"\x00"
        return len(expired)

    def forget(self, replica: Replica) -> None:
        """Drop the state kept for a released replica."""
        self._passes.pop(id(replica), None)
        self._done.pop(id(replica), None)


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
