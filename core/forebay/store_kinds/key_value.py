"""Key-value stores: the last value of each key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forebay.store_kinds.kind import StoreKind
from forebay.store_kinds.latest import LatestKind
from forebay.stored_keys import USER_TAG, LogicalKey, StoredKeys


@dataclass(frozen=True)
class KeyValueKind(StoreKind):
    """A key is stored as its codec orders it, and nothing follows."""

    name = "key-value"
    layout_name = "key-value"
    times = 0
    items = "entries"
    lists_each_key = False
    lists_by_time = False
    with_latest_by = LatestKind()

    def split_changelog(self, key: bytes, timestamp_ms: int) -> LogicalKey:
        return LogicalKey(key, ())

    def encoder(self, keys: StoredKeys) -> Callable[[bytes, int], bytes]:
        ordered = keys.codec.ordered
        return lambda key, _: USER_TAG + ordered(key)
