"""Position tokens: "read at least this", opaque to clients.

A token is base64url of MessagePack: a version, eight bytes of the log's identity, for each partition its number,
its position and the epoch of the last record before it, nil if that is not known, and the clock of a store whose
values expire by it, in milliseconds since 1970.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from forebay.errors import BadParameter
from forebay.log_epochs import OffsetAndEpoch
from forebay.wire.answer_schemas.members import Figure, Natural

_VERSION = 4
_DIGEST_BYTES = 8
Digest: TypeAlias = Annotated[bytes, Meta(min_length=_DIGEST_BYTES, max_length=_DIGEST_BYTES)]
_MAX_CHARACTERS_OF_A_LOG, _MAX_CHARACTERS_OF_AN_OFFSET = 40, 32
"""A partition takes three bytes at most, an offset, an epoch and the clock nine each, and base64 a third more."""

T = TypeVar("T")


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
    return hashlib.sha256(identity.encode()).digest()[:_DIGEST_BYTES]


def encode_opaque(value: Any) -> str:
    """A value as characters that a URL takes as they are."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(value)).rstrip(b"=").decode()


def decode_opaque(text: str, decode: Callable[[bytes], T]) -> T:
    """The value in such a text, by a decoder of MessagePack; raises ``ValueError``."""
    return decode(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))


_decode = msgspec.msgpack.Decoder(
    tuple[Literal[4], Digest, list[tuple[Natural, Natural, Figure]], Figure],
).decode


def encode_position(position: Position) -> str:
    """The token of a position."""
    points = [(part, offset, position.epochs.get(part)) for part, offset in sorted(position.offsets.items())]
    return encode_opaque((_VERSION, position.log, points, position.clock_ms))


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
        _, log, points, clock_ms = decode_opaque(token, _decode)
        offsets = {partition: offset for partition, offset, _ in points}
        if len(offsets) < len(points):
            raise ValueError("a partition twice")
    except ValueError:
        raise BadParameter(
            f"The position {token!r} is not a position token; use one from an earlier answer.",
            parameter="min_position",
        ) from None
    epochs = {partition: epoch for partition, _, epoch in points if epoch is not None}
    return Position(log, offsets, epochs, clock_ms)


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
