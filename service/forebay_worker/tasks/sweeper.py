"""The sweeper: searches replicas in turn for expired entries, for no longer than others can wait."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection

from forebay.clock import boot_ms
from forebay.stores import StoreCorrupted
from forebay.tasks import TopicPartition
from forebay_worker.tasks.expiry import Expiry
from forebay_worker.tasks.replica import Replica

log = logging.getLogger(__name__)

_MOST_SWEEPING_MS = 10.0
_PATIENCE_WHERE_EXPIRED = 6
"""A sweep that deletes may take this many times longer: a store must not grow faster than it is swept."""


class Sweeper:
    """Deletes what is past retention, replica by replica; in the applier's thread.

    ``writable(replica)`` says whether a replica is held and its store accepts writes; ``lost(replica, reason)`` is
    called if its store is lost; ``storage_fault(error)`` describes the machine's refusal behind an error, None if
    there is none.
    """

    def __init__(
        self,
        writable: Callable[[Replica], bool],
        lost: Callable[[Replica, str], None],
        storage_fault: Callable[[Exception], str | None],
    ) -> None:
        self._writable = writable
        self._lost = lost
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
            if spent_ms >= _MOST_SWEEPING_MS:
                return

    def forget(self, replica: Replica) -> None:
        """Drop the state kept for a released replica."""
        self._expiry.forget(replica)
        self._failed.discard(replica.topic_partition)

    def _sweep(self, replica: Replica) -> int:
        """Delete some expired entries, and return how many; waits if the disk refuses."""
        if not self._writable(replica):
            return 0
        tp = replica.topic_partition
        try:
            removed = self._expiry.sweep(replica)
        except StoreCorrupted as error:
            self._lost(replica, str(error))
            return 0
        except Exception as error:
            if tp not in self._failed:
                self._failed.add(tp)
                log.error("%s: expired entries could not be deleted: %s", tp, self._storage_fault(error) or error)
            return 0
        self._failed.discard(tp)
        return removed
