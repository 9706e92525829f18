"""The order of a record, in the log of a store with ``latest_by``: its key is the user key, a mark, and the order.

Why in the key: Kafka's compaction keeps the last record of each key. Records of one user key with different orders
are of different keys to it, so it never removes the one with the highest.

Imports nothing: the Spark sink ships this module to executors that may lack forebay.
"""

from __future__ import annotations

ORDER_MARK = b"\x00"
"""Between user key and order: a key of a log without orders hardly has it there."""
_BYTES = 8
ORDER_SIZE = len(ORDER_MARK) + _BYTES
"""Bytes by which a key in the log is longer than the user key."""
LOWEST_ORDER = -(1 << 63)
"""Orders are signed 64-bit integers."""


def with_order(plain: bytes, order: int) -> bytes:
    """The key in the log of a record. As bytes, those of one user key sort by their orders."""
    return plain + ORDER_MARK + (order - LOWEST_ORDER).to_bytes(_BYTES, "big")


def split_order(key: bytes) -> tuple[bytes, int]:
    """User key and order; raises ``ValueError`` for a key that has no order."""
    plain, order = split_order_bytes(key)
    return plain, int.from_bytes(order, "big") + LOWEST_ORDER


def split_order_bytes(key: bytes) -> tuple[bytes, bytes]:
    """The same with the order's bytes, which are those of stored keys too."""
    if len(key) < ORDER_SIZE or key[-ORDER_SIZE] != ORDER_MARK[0]:
        raise ValueError(
            f"its key {key[:40]!r} does not end with an order. If its log was written without latest_by, give the "
            "store another name, or empty the log with 'forebay changelog reset'"
        )
    return key[:-ORDER_SIZE], key[-_BYTES:]
