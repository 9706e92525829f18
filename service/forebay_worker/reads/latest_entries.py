"""The entries of a store with ``latest_by``: of each key that of the highest order, unless it is a deletion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from forebay.stored_keys import TIME_SIZE, StoredKeys, decode_version

Pair = tuple[bytes, bytes]
"""A stored key and its value."""

_LOWEST = b"\x00" * TIME_SIZE
_HIGHEST = b"\xff" * TIME_SIZE


class Entries(NamedTuple):
    """A part of a list: its entries, how many stored ones it took, and up to which stored key it is complete."""

    pairs: list[Pair]
    scanned: int
    last: bytes


def latest_entries(chunks: Iterable[list[Pair]], keys: StoredKeys, *, reverse: bool) -> Iterator[Entries]:
    """The latest entries of a scan, chunk by chunk, with their values as they were written.

    The stored key of each is that of the last order that its key could have in the direction of the scan. Why: a
    later page, which begins after it, must not list the key again if a higher order was applied meanwhile.
    """
    return _backward(chunks, keys) if reverse else _forward(chunks, keys)


def _forward(chunks: Iterable[list[Pair]], keys: StoredKeys) -> Iterator[Entries]:
    """Only the next key shows that an order is the highest; a page that ends before it continues with it."""
    held: list[Pair] = []
    for chunk in chunks:
        found, last = held + chunk, b""
        pairs: list[Pair] = []
        for (stored, value), (following, _) in pairwise(found):
            last, prefix = stored, keys.prefix_of(stored)
            if prefix != keys.prefix_of(following):
                last = prefix + _HIGHEST
                pairs += _live(last, value)
        held = found[-1:]
        yield Entries(pairs, len(chunk), last)
    for stored, value in held:
        last = keys.prefix_of(stored) + _HIGHEST
        yield Entries(_live(last, value), 0, last)


def _backward(chunks: Iterable[list[Pair]], keys: StoredKeys) -> Iterator[Entries]:
    """The first of a key has the highest order; a page ends before the whole key."""
    last = b""
    for chunk in chunks:
        pairs: list[Pair] = []
        for stored, value in chunk:
            place = keys.prefix_of(stored) + _LOWEST
            if place != last:
                pairs += _live(place, value)
            last = place
        yield Entries(pairs, len(chunk), last)


def _live(stored: bytes, encoded: bytes) -> list[Pair]:
    """The entry, none if it is a deletion."""
    value = decode_version(encoded)
    return [] if value is None else [(stored, value)]
