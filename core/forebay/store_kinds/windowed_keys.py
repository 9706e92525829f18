"""Keys of a log that end in their times, as Kafka's windowed serializers write them."""

from __future__ import annotations

import struct

from forebay.stored_keys import TIME_SIZE, KeyLayout, LogicalKey


def split_windowed(layout: KeyLayout, key: bytes) -> LogicalKey:
    """User key and timestamps; raises ``ValueError`` if the key is too short for them."""
    cut = len(key) - TIME_SIZE * layout.times
    if cut < 0:
        raise ValueError(f"a {layout.name} changelog key of {len(key)} bytes has no room for its timestamps")
    return LogicalKey(key[:cut], struct.unpack(f">{layout.times}q", key[cut:]))
