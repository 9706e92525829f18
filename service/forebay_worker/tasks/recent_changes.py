"""The keys that changed last in a replica: what a follower has missed, of this replica or of another."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple
from weakref import WeakSet

_PROCESS_BYTES = 64 << 20
"""Of all replicas of a process together."""
_MIN_BYTES = 64 << 10
_KEY_BYTES = 64
"""What a key takes beside its own bytes."""

_all: WeakSet[RecentChanges] = WeakSet()


class ChangedKeys(NamedTuple):
    """The stored keys that the records of ``[begin, end)`` changed."""

    begin: int
    end: int
    keys: tuple[bytes, ...]


class Reached(NamedTuple):
    """Up to where the changes of a replica are known, all at one moment."""

    end: int
    nonce: bytes
    """That of ``RecentChanges`` at that moment."""
    expired: int = 0
    """How many keys had been deleted as expired."""


class ChangesSince(NamedTuple):
    """The batches with changes at or after an offset, the keys that have expired since, and up to where these are
    all."""

    batches: list[ChangedKeys]
    expired: list[bytes]
    reached: Reached


class RecentChanges:
    """Which keys of a replica changed at which offsets, as far back as its share of memory allows.

    One thread writes, any thread reads. Offsets mean the same at every replica of a partition, so one that keeps
    those since an offset can tell a follower of another replica what it has missed, deletions too.
    """

    def __init__(self, *, has_ttl: bool = False) -> None:
        self._lock = threading.Lock()
        self._has_ttl = has_ttl
        self.restart(0)
        _all.add(self)

    def restart(self, position: int) -> None:
        """Forget all: the content is that of a position, and not known to follow from what it was."""
        with self._lock:
            self.nonce = secrets.token_bytes(4)
            """Identifies this sequence of batches: those of another replica end elsewhere."""
            self.end = position
            """All keys that records before it changed were noted, or are forgotten."""
            self._batches: deque[ChangedKeys] = deque()
            self._held_bytes = 0
            self._begin = position
            self._expired: deque[bytes] = deque()
            self.expired = 0
            """How many keys were deleted as expired: no offset tells of it."""
            # Of a replay from the beginning, tombstones may be gone.
            self._others_begin = position or None

    def note(self, keys: Iterable[bytes], position: int, *, end_reached: bool) -> None:
        """Add the keys that a batch up to a position changed; after its commit, before its progress is known."""
        changed = tuple(keys)
        with self._lock:
            if changed:
                self._batches.append(ChangedKeys(self.end, position, changed))
                self._held_bytes += _size(changed)
            self.end = position
            if end_reached and self._others_begin is None:
                self._others_begin = position
            self._forget_oldest()

    def note_expired(self, keys: Iterable[bytes]) -> None:
        """Add keys that were deleted as expired; after that."""
        gone = tuple(keys)
        with self._lock:
            self._expired.extend(gone)
            self.expired += len(gone)
            self._held_bytes += _size(gone)
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        max_bytes = max(_MIN_BYTES, _PROCESS_BYTES // max(1, len(_all)))
        while self._held_bytes > max_bytes and self._expired:
            self._held_bytes -= _size((self._expired.popleft(),))
        while self._held_bytes > max_bytes:
            oldest = self._batches.popleft()
            self._held_bytes -= _size(oldest.keys)
            self._begin = oldest.end

    @property
    def reached(self) -> Reached:
        """Up to where all changes were noted, or are forgotten."""
        with self._lock:
            return Reached(self.end, self.nonce, self.expired)

    def moved_from(self, offset: int, expired: int) -> bool:
        """Whether there are other changes than those up to an offset, and those of so many expired keys."""
        return (self.end, self.expired) != (offset, expired)

    def since(self, offset: int, nonce: bytes, expired: int = 0) -> ChangesSince | None:
        """What changed at or after an offset; None if some of it is not known any more.

        ``nonce`` is that of the replica which read up to the offset, and after so many keys had ``expired``. A
        batch may be noted right after the return, so the end of what is returned comes with it.
        """
        with self._lock:
            if offset < self._begin or (nonce != self.nonce and not self._knows_of_others(offset)):
                return None
            unsent = self.expired - expired
            if unsent > len(self._expired):
                return None
            found: list[ChangedKeys] = []
            for batch in reversed(self._batches):
                if batch.end <= offset:
                    break
                found.append(batch)
            gone = list(islice(self._expired, len(self._expired) - unsent, None))
            reached = Reached(self.end, self.nonce, self.expired)
        found.reverse()
        return ChangesSince(found, gone, reached)

    def _knows_of_others(self, offset: int) -> bool:
        """Whether what another replica's followers were sent up to an offset can be told from what is kept here.

        Which expired keys they were told of, cannot.
        """
        return not self._has_ttl and self._others_begin is not None and offset >= self._others_begin


def _size(keys: tuple[bytes, ...]) -> int:
    return sum(map(len, keys)) + _KEY_BYTES * len(keys)
