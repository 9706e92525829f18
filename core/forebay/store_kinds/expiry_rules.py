"""What expires in a store, by stream time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from forebay.retention import Retention, history_begins_ms, oldest_kept_ms
from forebay.stored_keys import StoredKeys

_PASSES_PER_HISTORY = 16
"""How much (as a fraction of its retention) a versioned store may exceed its minimum size."""


class ExpiryRule(Protocol):
    """Which entries of a store expire, and how often it is worth searching for them."""

    by_successor: bool
    """Whether only the next entry shows that one has expired, so that each part searched begins with the last
    entry of the one before."""

    def oldest_ms(self, store: Retention, stream_time_ms: int | None) -> int | None:
        """The oldest time, or moment of history, that a store keeps; None if it keeps all."""
        ...

    def step_ms(self, store: Retention) -> int:
        """By how much that must have grown before the store is searched again."""
        ...

    def expired(self, keys: StoredKeys, stored: Sequence[bytes], oldest_ms: int) -> list[bytes]:
        """Those of some successive stored keys that have expired."""
        ...


@dataclass(frozen=True)
class ExpiryByEnd:
    """A window or session expires a time after its end."""

    by_successor = False

    def oldest_ms(self, store: Retention, stream_time_ms: int | None) -> int | None:
        return oldest_kept_ms(store, stream_time_ms)

    def step_ms(self, store: Retention) -> int:
        return store.window_size_ms or store.gap_ms or 1

    def expired(self, keys: StoredKeys, stored: Sequence[bytes], oldest_ms: int) -> list[bytes]:
        parse = keys.parse
        return [key for key in stored if parse(key).times_ms[0] < oldest_ms]


@dataclass(frozen=True)
class ExpiryBySuccessor:
    """A version expires once its successor was already in force when history begins."""

    by_successor = True

    def oldest_ms(self, store: Retention, stream_time_ms: int | None) -> int | None:
        return history_begins_ms(store, stream_time_ms)

    def step_ms(self, store: Retention) -> int:
        return max(1, (store.history_retention_ms or 0) // _PASSES_PER_HISTORY)

    def expired(self, keys: StoredKeys, stored: Sequence[bytes], oldest_ms: int) -> list[bytes]:
        return [
            version
            for version, following in pairwise(stored)
            if keys.prefix_of(version) == keys.prefix_of(following)
            and keys.parse(following).times_ms[0] <= oldest_ms
        ]
