"""Keys of the codec ``json`` from the columns of many rows at once.

Imports only the standard library and pyarrow: the Spark sink ships it to executors that may lack forebay.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

SAFE_INTEGER = (1 << 53) - 1
_ESCAPED = r'["\\\x00-\x1f]'


class UnsafeInteger(ValueError):
    """A row's key has an integer that JSON's numbers cannot represent; ``row`` is that key."""

    def __init__(self, row: tuple[Any, ...]) -> None:
        super().__init__(f"{row!r}")
        self.row = row


def json_keys(parts: Sequence[Any]) -> Any:
    """Each row's key: RFC 8785 canonical JSON of an array of strings, integers, booleans and nulls.

    ``parts`` are Arrow arrays, and so is what is returned, of binary. Raises ``UnsafeInteger``, and
    ``pa.ArrowInvalid`` for strings that are not UTF-8.
    """
    for part in parts:
        part.validate(full=True)
    if any(map(_is_special, parts)):
        return pa.array(
            [json_key(row) for row in zip(*(part.to_pylist() for part in parts), strict=True)], pa.binary()
        )
    pieces: list[Any] = []
    for part in parts:
        pieces += [",", _as_json(part)]
    return pc.binary_join_element_wise("[", *pieces[1:], "]", "").cast(pa.binary())


def json_key(row: tuple[Any, ...]) -> bytes:
    """The key of one row; raises ``UnsafeInteger``."""
    for part in row:
        if isinstance(part, int) and abs(part) > SAFE_INTEGER:
            raise UnsafeInteger(row)
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()


def _is_special(part: Any) -> bool:
    """Whether a column has a string with something to escape, or an integer that may be refused."""
    if pa.types.is_boolean(part.type):
        return False
    if pa.types.is_integer(part.type):
        bounds = pc.min_max(part).as_py()
        return bounds["max"] is not None and max(-bounds["min"], bounds["max"]) > SAFE_INTEGER
    return bool(pc.any(pc.match_substring_regex(part, _ESCAPED)).as_py())


def _as_json(part: Any) -> Any:
    if pa.types.is_boolean(part.type) or pa.types.is_integer(part.type):
        texts = part.cast(pa.string())
    else:
        texts = pc.binary_join_element_wise('"', part.cast(pa.string()), '"', "")
    return pc.fill_null(texts, "null")
