"""How much of a partition a follower was sent, and the ids that tell it to whichever replica continues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from forebay.log_epochs import OffsetAndEpoch
from forebay.position import Digest, decode_opaque, encode_opaque

_VERSION = 4
MAX_ID_CHARACTERS = 8 << 10
"""Proxies take a request's head of that size. A stream whose id would be longer has none, so it begins anew."""
NO_NONCE = b""
_NOTHING, _PART, _ALL = 0, 1, 2
_Number: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 62)]
_decode = msgspec.msgpack.Decoder(tuple[Literal[4], Digest, Digest, _Number, bytes]).decode
"""An id: a version, digests of the selection and the log, an offset, and three packed numbers a partition."""


class ChangesCursor(NamedTuple):
    """How much of one partition was sent; offsets are those of its log."""

    log: bytes
    """Digest of the log's identity."""
    since: _Number
    """Of what was sent, every change before this offset was sent."""
    upper: _Number
    """What was sent may contain changes before this offset: no replica behind it may continue."""
    nonce: bytes = NO_NONCE
    """Which replica's batches ``skip`` counts in."""
    skip: _Number = 0
    """How many keys of the batch after ``since`` were sent too."""
    after: bytes | None = None
    """The state was sent up to this stored key, empty if nothing was yet; None once all was."""
    epoch: _Number | None = None
    """The epoch of the last record before ``upper``, None if that is not known."""
    expired: _Number = 0
    """How many of the keys that the replica with the nonce has deleted as expired were sent."""

    @property
    def point(self) -> OffsetAndEpoch | None:
        """The point in the log's history up to which it may contain changes, None if that is not known."""
        return None if self.epoch is None else OffsetAndEpoch(self.upper, self.epoch)

    @property
    def whole(self) -> bool:
        """Whether the state was sent to its end."""
        return self.after is None

    def reaches(self, other: ChangesCursor) -> bool:
        """Whether everything was sent that was up to another cursor."""
        skip, expired = (self.skip, self.expired) if self.nonce == other.nonce else (0, 0)
        is_past = (self.since, skip) >= (other.since, other.skip)
        return self.log == other.log and is_past and expired >= other.expired


def encode_id(selection: bytes, partitions: Sequence[int], cursors: Mapping[int, ChangesCursor]) -> str:
    """The id of an event: a position for each partition; empty if it would be too long.

    A partition whose state was not sent to its end begins anew, though not before what was sent of it. So does one
    that is of another log than the first.
    """
    log = next((cursors[partition].log for partition in partitions if partition in cursors), None)
    if log is None:
        return ""
    known = {partition: cursor for partition, cursor in cursors.items() if cursor.log == log}
    base = min(cursor.upper for cursor in known.values())
    numbers: list[int] = []
    for cursor in map(known.get, partitions):
        if cursor is None:
            numbers += (0, _NOTHING, 0)
        else:
            numbers += (cursor.upper - base, _extent(cursor), 0 if cursor.epoch is None else cursor.epoch + 1)
    text = encode_opaque((_VERSION, selection, log, base, b"".join(map(_leb128, numbers))))
    return text if len(text) <= MAX_ID_CHARACTERS else ""


def _leb128(number: int) -> bytes:
    """A number of at least 0 as unsigned LEB128: most of those in an id take a byte less than in MessagePack."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _read_leb128(packed: bytes) -> list[int]:
    """The numbers that follow each other in unsigned LEB128; raises ``ValueError``."""
    numbers, value, shift = [], 0, 0
    for byte in packed:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            if shift > 56:
                raise ValueError("number too long")
            continue
        numbers.append(value)
        value = shift = 0
    if shift:
        raise ValueError("number cut short")
    return numbers


def _extent(cursor: ChangesCursor) -> int:
    """How much was sent, in one number: not all of the state, or all changes up to a distance."""
    return _ALL + cursor.upper - cursor.since if cursor.whole else _PART


def decode_id(text: str, selection: bytes, partitions: Sequence[int]) -> dict[int, ChangesCursor]:
    """The cursors in an id, none of one that belongs to another selection; raises ``ValueError``."""
    _, found, log, base, packed = decode_opaque(text, _decode)
    numbers = _read_leb128(packed)
    if found != selection or len(numbers) != 3 * len(partitions):
        return {}
    cursors = {}
    stated = zip(partitions, numbers[::3], numbers[1::3], numbers[2::3], strict=True)
    for partition, over, extent, next_epoch in stated:
        upper = base + over
        if extent >= _PART:
            # No replica can tell what has changed since the beginning, so it resets the partition.
            since = 0 if extent == _PART else max(0, upper - extent + _ALL)
            epoch = next_epoch - 1 if next_epoch else None
            cursors[partition] = ChangesCursor(log, since, upper, epoch=epoch)
    return cursors
