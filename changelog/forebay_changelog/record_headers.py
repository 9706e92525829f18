"""What marks records: the keys of heartbeats, Kafka's record headers, and the refusal of a superseded writer.

Imports nothing: the Spark sink ships this module to executors that may lack forebay.
"""

from __future__ import annotations

HEARTBEAT_HEADER = "forebay-heartbeat"
"""Marks a heartbeat."""
SUPERSEDED_HEADER = "forebay-superseded"
"""On a heartbeat: the queries from which its own took over the writer's name, a JSON array, the newest first."""
COMPLETED_HEADER = "forebay-completed"
"""On the tombstone of a writer's heartbeats: it was retired since it has written all that it had to."""
DELETED_HEADER = "forebay-deleted"
"""Marks a deletion with an order. Its value is empty instead of null: Kafka drops nulls after a while, and what it
prevails over may be there longer."""
VALID_FROM_HEADER = "forebay-valid-from-ms"
"""A version's valid-from, 8 bytes big-endian: Spark's Kafka sink sets no timestamps."""
_PREFIX = b"\x00forebay-heartbeat\x00"


def heartbeat_key(writer: str) -> bytes:
    """The reserved key of a writer's heartbeats, the same in every partition."""
    return _PREFIX + writer.encode()


def writer_of(key: bytes | None) -> str | None:
    """Whose heartbeats have a key; None if it is not a heartbeat's."""
    if key is None or not key.startswith(_PREFIX):
        return None
    return key[len(_PREFIX) :].decode("utf-8", "replace")


def superseded(writer: str, query_id: str) -> str:
    """What happened to a query that writes under a name, and the remedy. That of a tap names the copy, too."""
    checkpoint_id, _, copy = query_id.partition("/")
    if copy:
        return (
            f"Two queries write as {writer!r}: this tap of query {checkpoint_id} was superseded by another tap or "
            "a sink. Stop one of them, or give each a store of its own. If the other is gone for good, start this "
            "tap again."
        )
    return (
        f"Two queries write as {writer!r}: query {query_id} was superseded by another. Stop one of them, or give "
        "each its own writer=. If the other is gone for good: forebay changelog retire-writer."
    )
