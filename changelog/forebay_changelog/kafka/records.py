"""What the headers of a Kafka record make of it."""

from __future__ import annotations

from collections.abc import Iterable

from forebay_changelog.base import Record
from forebay_changelog.heartbeat_keys import heartbeat_key
from forebay_changelog.record_headers import DELETED_HEADER, HEARTBEAT_HEADER, VALID_FROM_HEADER

_HEARTBEATS = heartbeat_key("")


def record_with_headers(
    offset: int,
    key: bytes,
    value: bytes | None,
    timestamp_ms: int,
    headers: Iterable[tuple[str, bytes | None]],
) -> Record:
    """A record whose headers may mark it as a heartbeat or a deletion, or state from when its version is valid.

    Most have none, and a restore makes millions of them: those need not come here.
    """
    heartbeat = False
    for name, content in headers:
        if name == HEARTBEAT_HEADER:
            heartbeat = key is not None and key.startswith(_HEARTBEATS)
        elif name == VALID_FROM_HEADER and content:
            timestamp_ms = int.from_bytes(content, "big", signed=True)
        elif name == DELETED_HEADER:
            value = None
    return offset, key, value, timestamp_ms, heartbeat
