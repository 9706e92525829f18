"""What a store's keys and values are made of: ``_metadata/schema`` and transformWithState's ``_stateSchema``.

Both are written with Java's ``DataOutput``: the format's name, then each schema as JSON in chunks, since a string
has at most 64 kB. Format 3 has any number of column families, each with the encoder of its keys.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from forebay_tap.spark_checkpoint.data_types import StructType, parse_struct
from forebay_tap.spark_checkpoint.errors import (
    CheckpointFileCorrupt,
    CheckpointFormatUnknown,
    StateUnsupported,
)

DEFAULT_FAMILY = "default"
INTERNAL_PREFIX = "$"
"""Of what Spark keeps for itself: timers, and indices of lists and of times to live."""


@dataclass(frozen=True)
class ColumnFamily:
    """One table within a store; stores without transformWithState have only ``default``."""

    name: str
    key: StructType
    value: StructType
    prefix_columns: int = 0
    """How many columns RocksDB's keys have apart from the others. The default provider's keys are one row."""
    has_lists: bool = False
    """Whether a key has a list of values, as transformWithState's list variables."""


def parse_schema(data: bytes, file: str, prefix_columns: int = 0) -> tuple[ColumnFamily, ...]:
    """The column families of a schema file.

    ``prefix_columns`` comes from the operator's metadata, and counts for formats 1 and 2, which don't have it.
    Raises ``CheckpointFormatUnknown``, ``CheckpointFileCorrupt`` or ``StateUnsupported``.
    """
    source = _DataInput(data, file)
    name = source.text()
    try:
        match name:
            case "v1":
                key, value = parse_struct(json.loads(source.text())), parse_struct(json.loads(source.text()))
                return (ColumnFamily(DEFAULT_FAMILY, key, value, prefix_columns),)
            case "v2":
                key, value = source.struct(), source.struct()
                return (ColumnFamily(DEFAULT_FAMILY, key, value, prefix_columns),)
            case "v3":
                return tuple(_family(source) for _ in range(source.integer(4)))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointFileCorrupt(f"{file} has no schema in its {name} format: {error!r}.") from error
    raise CheckpointFormatUnknown(f"{file} has schema format {name!r}; forebay knows v1 to v3.")


def _family(source: _DataInput) -> ColumnFamily:
    name = source.text()
    # Of rows in Avro only.
    source.integer(2)
    key = source.struct()
    source.integer(2)
    value = source.struct()
    encoder = json.loads(source.chunks())
    # The schema of a map variable's keys, which is within the key's.
    source.chunks()
    if name.startswith(INTERNAL_PREFIX):
        # Not decoded; indices by time have keys of their own.
        return ColumnFamily(name, key, value)
    return ColumnFamily(name, key, value, _prefix_columns(encoder, source.file))


def _prefix_columns(encoder: dict[str, object], file: str) -> int:
    match encoder:
        case {"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"}:
            return 0
        case {"keyStateEncoderType": "PrefixKeyScanStateEncoderSpec", "numColsPrefixKey": int(columns)}:
            return columns
    message = f"{file} has keys written by {encoder.get('keyStateEncoderType')}, which forebay does not decode."
    raise StateUnsupported(f"{message} Use a version of forebay that knows this version of Spark.")


class _DataInput:
    """What Java's ``DataOutputStream`` has written."""

    def __init__(self, data: bytes, file: str) -> None:
        self.file = file
        self._data, self._at = data, 0

    def integer(self, width_bytes: int) -> int:
        return int.from_bytes(self._taken(width_bytes), "big", signed=True)

    def text(self) -> str:
        return self._taken(int.from_bytes(self._taken(2), "big")).decode(errors="replace")

    def chunks(self) -> str:
        """A text of any length."""
        return "".join([self.text() for _ in range(self.integer(4))])

    def struct(self) -> StructType:
        return parse_struct(json.loads(self.chunks()))

    def _taken(self, size_bytes: int) -> bytes:
        part = self._data[self._at : self._at + size_bytes]
        if len(part) < size_bytes:
            raise CheckpointFileCorrupt(f"{self.file} is cut short, at {len(self._data)} bytes. Restore the file.")
        self._at += size_bytes
        return part
