"""JSON in its canonical form, RFC 8785."""

from __future__ import annotations

import json
import re
from typing import Any

import rfc8785

_MOST_EXACT = 2**53 - 1
_BEYOND_UTF16_ORDER = re.compile("[\ue000-\U0010ffff]")


def canonical_json(value: Any) -> bytes:
    """A JSON value in its RFC 8785 form; raises what ``rfc8785.dumps`` raises.

    Why not by that alone: it is written in Python throughout, and takes milliseconds for a key of a few kilobytes.
    """
    if _is_plain(value):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
    return rfc8785.dumps(value)


def _is_plain(value: Any) -> bool:
    """Whether Python's own encoder writes a value as RFC 8785 does."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-_MOST_EXACT <= value <= _MOST_EXACT)
    if kind is float:
        # Others have an exponent, or are written without a fraction.
        return bool(1e-4 <= abs(value) < 1e15) and not value.is_integer()
    if kind is list:
        return all(map(_is_plain, value))
    if kind is not dict:
        return False
    if not all(type(name) is str and _BEYOND_UTF16_ORDER.search(name) is None for name in value):
        return False
    return all(map(_is_plain, value.values()))
