"""Keys of Spark's state as plain bytes of a store's codec."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence

from forebay.codecs.keys import TOTAL_KEYS
from forebay.errors import BadKey
from forebay.store_spec import StoreSpec
from forebay_tap.spark_checkpoint.description import Path, field_at, field_reader
from forebay_tap.spark_checkpoint.unsafe_row import Row

_SAFE_INTEGER = (1 << 53) - 1
_INTEGERS = {"int32": struct.Struct(">i").pack, "int64": struct.Struct(">q").pack}
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class KeyUnfit(Exception):
    """A key that the store's codec cannot have, such as null."""


class KeyEncoder:
    """Encodes the columns of keys that are at some paths, which must be of types that fit the store's codec."""

    def __init__(self, spec: StoreSpec, paths: Sequence[Path]) -> None:
        self._codec = spec.key
        self._from_json = spec.key_codec.from_json
        self._paths = paths
        self._pack = _INTEGERS.get(spec.key)

    def plain(self, key: Row) -> bytes:
        """A key's plain bytes; raises ``KeyUnfit``."""
        parts = [field_at(key, path) for path in self._paths]
        if not parts:
            return TOTAL_KEYS[self._codec].encode()
        if self._codec == "json":
            if any(isinstance(part, int) and abs(part) > _SAFE_INTEGER for part in parts):
                raise KeyUnfit(f"{parts!r} has an integer beyond 2^53, which a JSON key cannot: cast it to string")
            try:
                return _encode(parts).encode()
            except UnicodeEncodeError:
                raise KeyUnfit(f"{parts!r} has text that is no UTF-8") from None
        if parts == [None]:
            raise KeyUnfit("it is null")
        if self._codec == "bytes":
            return bytes(parts[0])
        try:
            return self._from_json(parts[0])
        except BadKey as error:
            raise KeyUnfit(error.detail) from None

    def plains(self, keys: Sequence[Row]) -> list[bytes]:
        """The plain bytes of several keys; raises ``KeyUnfit`` if one has none."""
        if self._pack is None or not self._paths:
            return list(map(self.plain, keys))
        [path] = self._paths
        try:
            # Spark's integers of the key's type fit it, but for null.
            return list(map(self._pack, map(field_reader(path), keys)))
        except struct.error:
            return list(map(self.plain, keys))
