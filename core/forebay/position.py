"""Position tokens: "read at least this", opaque to clients.

A token is base64url of a version byte, eight bytes of the log's identity, then unsigned LEB128 numbers in threes:
partition, position, and one more than the epoch of the last record before it, 0 if that is not known. Of a store
whose values expire by the clock, it has a version of its own, and the clock follows, in milliseconds since 1970.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from forebay.errors import BadParameter
from forebay.log_epochs import OffsetAndEpoch

_VERSION, _WITH_CLOCK = 2, 3
_LOG_BYTES = 8
_MAX_CHARACTERS_OF_A_LOG, _MAX_CHARACTERS_OF_AN_OFFSET = 32, 32
"""A partition takes three bytes at most, an offset, an epoch and the clock ten each, and base64 a third more."""


class Position(NamedTuple):
    """The positions of some partitions of one log, by partition."""

    log: bytes
    offsets: Mapping[int, int]
    epochs: Mapping[int, int] = {}
    """Those of the last records before the offsets, where they are known."""
    clock_ms: int | None = None
    """What had expired then has expired, whatever the clock of who answers next."""

    def point(self, partition: int) -> OffsetAndEpoch | None:
        """The point in a partition's history, None if its epoch is not known."""
        epoch = self.epochs.get(partition)
        return None if epoch is None else OffsetAndEpoch(self.offsets[partition], epoch)

    def of(self, partition: int) -> Position:
        """The position of one of its partitions."""
        epochs = {partition: self.epochs[partition]} if partition in self.epochs else {}
        return Position(self.log, {partition: self.offsets[partition]}, epochs, self.clock_ms)

    def at_least(self, other: Position) -> bool:
        """Whether every partition of ``other`` is reached here."""
        return all(self.offsets.get(partition, 0) >= offset for partition, offset in other.offsets.items())


@lru_cache(maxsize=4096)
def log_digest(identity: str) -> bytes:
    """Eight bytes that represent a log's identity in a token."""
    return hashlib.sha256(identity.encode()).digest()[:_LOG_BYTES]


def encode_position(position: Position) -> str:
    """The token of a position."""
    raw = bytearray([_VERSION if position.clock_ms is None else _WITH_CLOCK])
    raw += position.log
    for partition in sorted(position.offsets):
        raw += encode_leb128(partition)
        raw += encode_leb128(position.offsets[partition])
        raw += encode_leb128(position.epochs.get(partition, -1) + 1)
    if position.clock_ms is not None:
        raw += encode_leb128(position.clock_ms)
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@lru_cache(maxsize=4096)
def partition_position(
    log: str, partition: int, offset: int, epoch: int | None = None, clock_ms: int | None = None
) -> str:
    """The position that an answer from one partition carries: ``offset`` is an upper bound of what it contains."""
    epochs = {} if epoch is None else {partition: epoch}
    return encode_position(Position(log_digest(log), {partition: offset}, epochs, clock_ms))


def decode_position(token: str) -> Position:
    """The position of a token; raises ``BadParameter``."""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        if raw[0] not in (_VERSION, _WITH_CLOCK) or len(raw) < 1 + _LOG_BYTES:
            raise ValueError
        numbers = read_leb128(raw[1 + _LOG_BYTES :])
        clock_ms = numbers.pop() if raw[0] == _WITH_CLOCK else None
        offsets, epochs = _points(numbers)
    except (binascii.Error, ValueError, IndexError):
        raise BadParameter(
            f"The position {token!r} is not a position token; use one from an earlier answer.",
            parameter="min_position",
        ) from None
    return Position(raw[1 : 1 + _LOG_BYTES], offsets, epochs, clock_ms)


def _points(numbers: list[int]) -> tuple[dict[int, int], dict[int, int]]:
    """The offsets and the epochs in a token's numbers; raises ``ValueError``."""
    offsets = dict(zip(numbers[::3], numbers[1::3], strict=True))
    return offsets, {part: after - 1 for part, after in zip(offsets, numbers[2::3], strict=True) if after}


def max_position_characters(partitions: int) -> int:
    """How long the token of a position of so many partitions may be."""
    return _MAX_CHARACTERS_OF_A_LOG + _MAX_CHARACTERS_OF_AN_OFFSET * partitions


def later_position(one: str | None, other: str | None) -> str | None:
    """A token with the later position of two tokens, partition by partition.

    Tokens of different logs have no common order: then the second, the newer, is kept.
    """
    if one is None or other is None:
        return other or one
    a, b = decode_position(one), decode_position(other)
    if a.log != b.log:
        return other
    return encode_position(merged_position([a, b]))


def merged_position(positions: Sequence[Position]) -> Position:
    """The latest of several positions of one log, partition by partition."""
    offsets: dict[int, int] = {}
    epochs: dict[int, int] = {}
    for position in positions:
        for partition, offset in position.offsets.items():
            if offset < offsets.get(partition, 0):
                continue
            offsets[partition] = offset
            epochs.pop(partition, None)
            if partition in position.epochs:
                epochs[partition] = position.epochs[partition]
    clocks_ms = [position.clock_ms for position in positions if position.clock_ms is not None]
    return Position(positions[0].log, offsets, epochs, max(clocks_ms, default=None))


def encode_leb128(number: int) -> bytes:
    """A number of at least 0 as unsigned LEB128."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_leb128(raw: bytes) -> list[int]:
    """The numbers that follow each other in unsigned LEB128; raises ``ValueError``."""
    numbers, value, shift = [], 0, 0
    for byte in raw:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            if shift > 63:
                raise ValueError("number too long")
            continue
        numbers.append(value)
        value = shift = 0
    if shift:
        raise ValueError("number cut short")
    return numbers
