"""Expiry: windows and sessions past their store's retention, by stream time, so that all replicas agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from forebay.stored_keys import END_OF_USER_KEYS, USER_TAG
from forebay.topology import StoreSpec
from forebay_worker.tasks.replica import Replica

_ENTRIES_PER_SWEEP = 2_000


def oldest_kept_ms(spec: StoreSpec, stream_time_ms: int | None) -> int | None:
    """The first time in the key of the oldest entry still kept: a window's start, a session's end.

    None where all are. An entry is kept until its end is ``retention_ms`` behind stream time, the largest end.
    """
    if stream_time_ms is None or spec.retention_ms is None:
        return None
    return stream_time_ms - spec.retention_ms - (spec.window_size_ms or 0) + 1


@dataclass
class _Pass:
    """One walk over a store: where it is, and the oldest time that it keeps."""

    oldest_ms: int
    after: bytes = USER_TAG


@dataclass
class Expiry:
    """Deletes what is expired a few thousand entries at a time; reads never return them anyway."""

    _passes: dict[int, _Pass] = field(default_factory=dict)
    _done: dict[int, int] = field(default_factory=dict)

    def sweep(self, replica: Replica) -> int:
        """Walk on through a replica's store; in the applier's thread. Returns how many entries went."""
        oldest = oldest_kept_ms(replica.spec, replica.stream_time_ms)
        if oldest is None:
            return 0
        at = self._passes.get(id(replica))
        if at is None:
            step_ms = replica.spec.window_size_ms or replica.spec.gap_ms or 1
            if oldest - self._done.get(id(replica), oldest - step_ms) < step_ms:
                return 0
            at = self._passes[id(replica)] = _Pass(oldest)
        seen = list(islice(replica.store.scan(at.after, END_OF_USER_KEYS), _ENTRIES_PER_SWEEP))
        expired = [key for key, _ in seen if replica.spec.stored_keys.parse(key).times_ms[0] < at.oldest_ms]
        for key in expired:
            replica.store.delete(key)
        if expired:
            replica.store.commit({})
        if len(seen) < _ENTRIES_PER_SWEEP:
            del self._passes[id(replica)]
            self._done[id(replica)] = at.oldest_ms
        else:
            at.after = seen[-1][0] + b"\x00"
        return len(expired)

    def forget(self, replica: Replica) -> None:
        """Drop what is remembered of a replica that was released."""
        self._passes.pop(id(replica), None)
        self._done.pop(id(replica), None)
