"""The keys of heartbeats.

Imports nothing: the Spark sink ships this module to executors that may lack forebay.
"""

from __future__ import annotations

_PREFIX = b"\x00forebay-heartbeat\x00"


def heartbeat_key(writer: str) -> bytes:
    """The reserved key of a writer's heartbeats, the same in every partition."""
    return _PREFIX + writer.encode()


def writer_of(key: bytes | None) -> str | None:
    """Whose heartbeats have a key; None if it is not a heartbeat's."""
    if key is None or not key.startswith(_PREFIX):
        return None
    return key[len(_PREFIX) :].decode("utf-8", "replace")
