"""The keys of heartbeats.

Imports nothing: the Spark sink ships this module to executors that may lack forebay.
"""

from __future__ import annotations


def heartbeat_key(writer: str) -> bytes:
    """The reserved key of a writer's heartbeats, the same in every partition."""
    return b"\x00forebay-heartbeat\x00" + writer.encode()
