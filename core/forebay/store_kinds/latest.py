"""Key-value stores with ``latest_by``: the value of each key's highest order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forebay.record_orders import split_order, split_order_bytes
from forebay.store_kinds.kind import StoreKind
from forebay.stored_keys import LogicalKey, StoredKeys


@dataclass(frozen=True)
class LatestKind(StoreKind):
    """The layout is that of versions, with the order in place of the timestamp."""

    name = "key-value"
    layout_name = "latest"
    times = 1
    items = "entries"
    last_entry_wins = True
    lists_each_key = False
    lists_by_time = False
    time_names = ("order",)

    def split_changelog(self, key: bytes, timestamp_ms: int) -> LogicalKey:
        plain, order = split_order(key)
        return LogicalKey(plain, (order,))

    def encoder(self, keys: StoredKeys) -> Callable[[bytes, int], bytes]:
        prefix = keys.prefix

        def encode(key: bytes, timestamp_ms: int) -> bytes:
            plain, order = split_order_bytes(key)
            return prefix(plain) + order

        return encode
