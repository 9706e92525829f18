"""How a version is stored: a deletion is one too, since from then on there was no value."""

from __future__ import annotations

_DELETED = b"\x00"
_LIVE = b"\x01"


def encode_version(value: bytes | None) -> bytes:
    """The bytes that a store keeps for a value, or for its deletion."""
    return _DELETED if value is None else _LIVE + value


def decode_version(stored: bytes) -> bytes | None:
    """The value; None if it was deleted."""
    return None if stored[:1] == _DELETED else stored[1:]
