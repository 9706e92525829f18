"""Reads documents as the types that describe them."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

S = TypeVar("S")


def read_json(body: bytes, shape: type[S]) -> S:
    """The document in a body; raises ``ValueError``, naming what is missing or mistyped, if it is another."""
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def read_values(values: Any, shape: type[S]) -> S:
    """The document in JSON values that were parsed before; raises ``ValueError`` likewise."""
    try:
        return msgspec.convert(values, shape)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
