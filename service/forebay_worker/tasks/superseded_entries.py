"""Entries of a store with ``latest_by`` that a higher order of their key has superseded: no read returns them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, pairwise

from forebay.state_store import StateStore
from forebay.stored_keys import END_OF_USER_KEYS, USER_TAG
from forebay_worker.tasks.replica import Replica

_ENTRIES_PER_SWEEP = 2_000
_MIN_APPLIED = 1_000
_PART_APPLIED = 4
"""The next pass begins once as many records were applied as this part of the store's entries."""


@dataclass
class _SweepPass:
    """The pass through a store: where it continues, and how many entries it has seen."""

    store: StateStore
    applied_before: int
    start: bytes | None = USER_TAG
    """None once it is through."""
    seen: int = 0

    def is_due_again(self, applied: int) -> bool:
        """Whether enough was applied since it began that another is worth it."""
        return applied - self.applied_before >= max(_MIN_APPLIED, self.seen // _PART_APPLIED)


class SupersededSweep:
    """Deletes superseded entries a few thousand at a time.

    What it leaves is the same to every read, so replicas need not agree on when they do it.
    """

    def __init__(self) -> None:
        self._passes: dict[int, _SweepPass] = {}

    def sweep(self, replica: Replica) -> int:
        """Continue through a replica's store, in the applier's thread; returns the number of entries deleted."""
        at, store, applied = self._passes.get(id(replica)), replica.view.store, replica.records.applied
        if at is None or at.store is not store or (at.start is None and at.is_due_again(applied)):
            at = self._passes[id(replica)] = _SweepPass(store, applied)
        if at.start is None:
            return 0
        seen = [key for key, _ in islice(store.scan(at.start, END_OF_USER_KEYS), _ENTRIES_PER_SWEEP)]
        prefix_of = replica.spec.stored_keys.prefix_of
        superseded = [one for one, following in pairwise(seen) if prefix_of(one) == prefix_of(following)]
        for key in superseded:
            store.delete(key)
        if superseded:
            store.commit({})
        at.seen += len(seen) - 1
        # The last one is looked at again: the next one shows whether it is superseded.
        at.start = seen[-1] if len(seen) == _ENTRIES_PER_SWEEP else None
        return len(superseded)

    def forget(self, replica: Replica) -> None:
        """Drop the state kept for a released replica."""
        self._passes.pop(id(replica), None)
