"""The documents of answers, with numbers as a client wants them."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from forebay.store_kinds import STORE_KINDS

_LISTS = ("results", *sorted({kind.items for kind in STORE_KINDS.values()}))
"""The members of documents that have keys in their items."""


def parse_document(text: str | bytes, *, decimals: bool) -> Any:
    """The JSON value of a text; raises ``ValueError``.

    With ``decimals``, values have a ``Decimal`` for a number with a fraction or an exponent. Keys have floats all
    the same, since a key must be what it is requested by.
    """
    if not decimals:
        return json.loads(text)
    document = json.loads(text, parse_float=Decimal)
    _restore_keys(document)
    return document


def _restore_keys(document: Any) -> None:
    if not isinstance(document, dict):
        return
    if "key" in document:
        document["key"] = _with_floats(document["key"])
    _restore_keys(document.get("problem"))
    for name in _LISTS:
        items = document.get(name)
        for item in items if isinstance(items, list) else ():
            _restore_keys(item)


def _with_floats(key: Any) -> Any:
    match key:
        case Decimal():
            return float(key)
        case list():
            return [_with_floats(part) for part in key]
        case dict():
            return {name: _with_floats(part) for name, part in key.items()}
    return key
