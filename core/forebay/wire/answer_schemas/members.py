"""Types that members of several answers have."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

Natural: TypeAlias = Annotated[int, Meta(ge=0)]
Figure: TypeAlias = Natural | None
"""None while it is unknown."""
Host: TypeAlias = Annotated[str, Meta(description="host:port")]
Role: TypeAlias = Literal["active", "restoring", "standby"]
JsonValue: TypeAlias = Any
"""A key or a value: any JSON."""


class UnprovenEnds(Struct, frozen=True):
    """Windows or sessions that ended after `from_ms`, and by `to_ms`, may be missing: their log may lack them."""

    from_ms: Annotated[int | None, Meta(description="Null if all are meant that ended by `to_ms`.")]
    to_ms: int


class LagFigures(Struct, frozen=True):
    """How far an answer may be behind the stream."""

    record_lag: Figure
    time_lag_ms: Figure
    age_ms: Figure


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
