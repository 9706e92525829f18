"""The layout of keys in a store, which makes stored order logical order, and of the values of versions.

A stored key is one tag byte, the key in its codec's ordered form, then the store kind's timestamps: window start;
session end and start; version valid-from. If timestamps follow, keys of varying length are escaped (``00`` becomes
``00 FF``) and end in ``00 01``, so one key's windows never interleave with another's. Timestamps are big-endian
milliseconds with the sign bit flipped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from forebay.codecs.keys import KeyCodec

RESERVED_TAG = b"\x00"
"""Tag of keys that a store keeps for itself, such as its offset."""
USER_TAG = b"\x01"
"""Tag of the records' keys."""
END_OF_USER_KEYS = b"\x02"
"""Sorts after every user key."""

TIME_SIZE = 8
"""Bytes of a timestamp."""
_SIGN = 1 << 63
MIN_TIME_MS = -_SIGN
MAX_TIME_MS = _SIGN - 1


class LogicalKey(NamedTuple):
    """A stored key's parts: the key's plain bytes, and its timestamps in stored order."""

    plain: bytes
    times_ms: tuple[int, ...]


def stored_time(time_ms: int) -> bytes:
    """A timestamp as it is in stored keys, so that earlier ones sort first."""
    return (time_ms + _SIGN).to_bytes(TIME_SIZE, "big")


class KeyLayout(Protocol):
    """How one kind of store lays out its keys."""

    name: str
    """The kind's name in the topology."""
    layout_name: str
    """The layout's name in the identity of stores on disk: with another one, a store is rebuilt."""
    times: int
    """How many timestamps follow a key in the store: 0, 1 or 2. If two, the end comes before the start."""

    def split_changelog(self, key: bytes, timestamp_ms: int) -> LogicalKey:
        """User key and timestamps of a changelog record's key; raises ``ValueError`` if it cannot have them."""

    def encoder(self, keys: StoredKeys) -> Callable[[bytes, int], bytes]:
        """What makes stored keys of changelog records' keys and timestamps; it raises ``ValueError``."""
        split, stored = self.split_changelog, keys.stored

        def encode(key: bytes, timestamp_ms: int) -> bytes:
            plain, times_ms = split(key, timestamp_ms)
            return stored(plain, *times_ms)

        return encode


@dataclass(frozen=True)
class StoredKeys:
    """Translates between changelog keys and stored keys for one layout and key codec."""

    layout: KeyLayout
    codec: KeyCodec
    times: int = field(init=False, repr=False, compare=False)
    """How many timestamps follow the key: 0, 1 or 2."""
    from_changelog: Callable[[bytes, int], bytes] = field(init=False, repr=False, compare=False)
    """Makes the stored key of a changelog record's key and timestamp; raises ``ValueError`` if the key is too
    short for its kind."""
    split_changelog: Callable[[bytes, int], LogicalKey] = field(init=False, repr=False, compare=False)
    """Takes user key and timestamps from a changelog record's key and timestamp; raises ``ValueError``."""

    def __post_init__(self) -> None:
        # Why no cached properties: these would make every attribute slower to read (CPython 3.11).
        object.__setattr__(self, "times", self.layout.times)
        object.__setattr__(self, "split_changelog", self.layout.split_changelog)
        object.__setattr__(self, "from_changelog", self.layout.encoder(self))

    def stored(self, plain: bytes, *times_ms: int) -> bytes:
        """The stored key; with fewer times than the kind has, a prefix of one key's entries."""
        prefix = self.prefix(plain)
        return prefix + b"".join(map(stored_time, times_ms)) if times_ms else prefix

    def prefix(self, plain: bytes) -> bytes:
        """The common prefix of one key's entries; if timestamps follow the key, no other key's entries share
        it."""
        ordered = self.codec.ordered(plain)
        if self.times and self.codec.fixed_size is None:
            ordered = ordered.replace(b"\x00", b"\x00\xff") + b"\x00\x01"
        return USER_TAG + ordered

    def beginning(self, plain: bytes) -> bytes:
        """What all stored keys begin with whose keys, of varying length, begin with ``plain``."""
        return USER_TAG + (plain.replace(b"\x00", b"\x00\xff") if self.times else plain)

    def prefix_of(self, stored: bytes) -> bytes:
        """The prefix for a stored key's key: the stored key without its timestamps."""
        return stored[: len(stored) - TIME_SIZE * self.times]

    def parse(self, stored: bytes) -> LogicalKey:
        """The inverse of ``stored``, for a whole key."""
        cut = len(stored) - TIME_SIZE * self.times
        ordered, tail = stored[1:cut], stored[cut:]
        if self.times and self.codec.fixed_size is None:
            ordered = ordered[:-2].replace(b"\x00\xff", b"\x00")
        times = struct.unpack(f">{self.times}Q", tail)
        return LogicalKey(self.codec.plain(ordered), tuple(time - _SIGN for time in times))

    def plains(self, stored: list[bytes]) -> list[bytes]:
        size, plain = TIME_SIZE * self.times, self.codec.plain
        if self.codec.fixed_size is not None:
            return [plain(key[1 : len(key) - size]) for key in stored]
        # Keys of any length are ordered by their plain bytes.
        if not size:
            return [key[1:] for key in stored]
        return [key[1 : -size - 2].replace(b"\x00\xff", b"\x00") for key in stored]

    def times_ms(self, stored: list[bytes]) -> list[tuple[int, ...]]:
        """Of each timestamp, in stored order, that of every stored key."""
        count = self.times
        tails = b"".join([key[-TIME_SIZE * count :] for key in stored])
        found = [time - _SIGN for time in struct.unpack(f">{count * len(stored)}Q", tails)]
        return [tuple(found[at::count]) for at in range(count)]


def successor(prefix: bytes) -> bytes:
    """The smallest bytes greater than everything that begins with ``prefix`` (a user-tagged key)."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1])
